"""The one list of settings: names, types, defaults and meaning all come from here.

Environment variables carry NVIDIA's names where NVIDIA's mig-manager has the setting, else the prefix
`MIG_MANAGER_`. Lists are JSON in the environment.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal

from pydantic import AliasChoices, Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from mig_manager.daemon.settingtypes import (
    Commands,
    DrainMode,
    DrainScope,
    DriftMode,
    EditedLayouts,
    Listen,
    NodeName,
    PoolLimits,
    Seconds,
    Strategy,
    Windows,
    Words,
    Zone,
    port_of,
)
from mig_manager.gpu.clearance import IGNORED
from mig_manager.host.cdi import COMMANDS, SPECIFICATION
from mig_manager.layouts.findings import hint
from mig_manager.layouts.suggest import nearest

PREFIX = "MIG_MANAGER_"


def _named(*names: str) -> AliasChoices:
    """Environment variable names without the prefix: NVIDIA's own."""
    return AliasChoices(*names)


class Settings(BaseSettings):
    """Everything that an administrator can set. Times are in seconds."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="ignore", frozen=True, populate_by_name=True, env_ignore_empty=True
    )

    node_name: NodeName = Field(
        default="",
        validation_alias=_named("NODE_NAME", "node_name"),
        description="Name of the Node that this daemon manages. Required.",
    )
    pod_namespace: str = Field(
        default="default",
        validation_alias=_named("POD_NAMESPACE", "pod_namespace"),
        description="Namespace of the daemon's own pod, and of its ConfigMap unless set otherwise.",
    )
    pod_ip: str = Field(
        default="",
        validation_alias=_named("POD_IP", "pod_ip"),
        description="The daemon's own address, where its pages are; see MIG_MANAGER_LISTEN.",
    )
    kubeconfig: Path | None = Field(
        default=None,
        validation_alias=_named("KUBECONFIG", "kubeconfig"),
        description="Credentials file; without it the pod's service account is used.",
    )

    config_map_name: str = Field(
        default="mig-manager-layouts", description="ConfigMap of layouts, watched through the API."
    )
    config_map_namespace: str = Field(
        default="", description="Its namespace; empty means the daemon's own (POD_NAMESPACE)."
    )
    config_map_key: str = Field(default="config.yaml", description="The key that holds the layout file.")
    config_file: Path | None = Field(
        default=None,
        validation_alias=_named("CONFIG_FILE", "config_file"),
        description="Layout file, such as a mounted ConfigMap; read again when it changes. Replaces the ConfigMap.",
    )
    default_config_file: Path | None = Field(
        default=None,
        validation_alias=_named("DEFAULT_CONFIG_FILE", "default_config_file"),
        description="Layout file that serves for names that neither the ConfigMap nor CONFIG_FILE has.",
    )

    default_layout: str = Field(
        default="",
        description="Layout for a Node without the label nvidia.com/mig.config, if it has any GPU with MIG; empty: "
        "its GPUs are left as they are. The label is not written, and wins once it is set.",
    )
    startup_taint: str = Field(
        default="mig-manager/not-ready",
        min_length=1,
        description="Key of a start-up taint, which is taken off once the GPUs are as the layout says, or nothing is "
        "asked of them.",
    )

    driver_root: Path | None = Field(
        default=None,
        validation_alias=_named("DRIVER_ROOT_CTR_PATH", "driver_root"),
        description="Where the driver's files lie in this container; libnvidia-ml.so.1 is looked for there first.",
    )
    nvml_loader: str = Field(
        default="",
        description="`package.module:function` that puts another NVML library in place; for simulations.",
    )
    nvml_argument: str = Field(default="", description="What that function is called with.")
    nvml_call_timeout: Seconds = Field(
        default=120.0, description="A driver call that takes longer is given up, and its process killed."
    )
    driver_retry: Seconds = Field(
        default=10.0,
        description="How long to wait between two looks for a driver that is not there (yet), and between two "
        "glances (one small file, no NVML) at whether its kernel module has been loaded anew.",
    )
    drift: DriftMode = Field(
        default="report",
        description="What happens where GPUs are not what the layout says any more: `report` says so on the Node, "
        "`repair` also applies the layout again unless that takes something from a pod or a process. After a reload "
        "of the driver it is always applied again.",
    )
    drift_interval: float = Field(
        default=300.0,
        ge=0,
        description="How often the GPUs are compared with the layout that was applied, in an NVML session that lasts "
        "a moment; 0: never.",
    )
    in_use_window: float = Field(
        default=30.0,
        ge=0,
        description="How long a destroy that the driver answers with IN_USE is tried again.",
    )
    parallel_gpus: bool = Field(default=True, description="Work on the GPUs of a node at the same time.")
    reset_command: Words = Field(
        default=("nvidia-smi", "-r", "-i", "{addresses}"),
        description="Command that resets GPUs, run inside the driver root; `{gpus}` becomes their UUIDs, and "
        "`{addresses}` their PCI addresses.",
    )
    reset_timeout: Seconds = Field(default=180.0, description="How long a reset may take.")
    unload_drm: bool = Field(
        default=False,
        description="Unload the kernel module nvidia_drm for each reset, which it would keep from working, and load it"
        " again; not possible while a display uses it.",
    )
    modprobe_command: Words = Field(
        default=("modprobe",),
        description="Command that does so, run inside the driver root with `-r nvidia_drm` or `nvidia_drm` behind it.",
    )
    with_reboot: bool = Field(
        default=False,
        validation_alias=_named("WITH_REBOOT", "with_reboot"),
        description="Reboot the node where its GPUs cannot be reset and their MIG mode has to change, as in many "
        "virtual machines; every pod that can be evicted is drained first. Once for each layout that is asked for.",
    )
    reboot_command: Words = Field(
        default=("chroot", "{host}", "reboot"),
        description="Command that reboots the node; `{host}` becomes HOST_ROOT_MOUNT.",
    )
    reboot_timeout: Seconds = Field(
        default=900.0,
        description="How long after that command the node may still be up, before the run fails and everything is "
        "put back.",
    )
    proc_root: Path = Field(
        default=Path("/proc"),
        description="The host's /proc: who has device nodes open, and which MIG capabilities there are. In the "
        "host's pid namespace (hostPID) it is /proc itself.",
    )
    sys_root: Path = Field(default=Path("/sys"), description="The host's /sys.")
    holder_window: float = Field(
        default=30.0,
        ge=0,
        description="How long processes may take to let go of GPUs and instances that are about to change.",
    )
    holders_ignored: Words = Field(
        default=IGNORED, description="Programs that have whole GPUs open without being in the way."
    )
    dev_root: Path = Field(
        default=Path("/"),
        validation_alias=_named("DEV_ROOT_CTR_PATH", "dev_root"),
        description="The directory in this container whose `dev` holds the host's device nodes.",
    )
    cdi_enabled: bool = Field(
        default=False,
        validation_alias=_named("CDI_ENABLED", "cdi_enabled"),
        description="Make the CDI specification anew after a change of the GPUs.",
    )
    cdi_commands: Commands = Field(
        default=COMMANDS,
        description="Commands that write it to `{output}`, JSON list of lists; `{host}` stands for HOST_ROOT_MOUNT, "
        "`{driver_root}`, `{dev_root}` and `{hook}` for the paths on the host, `{driver_root_here}` and "
        "`{dev_root_here}` for those here.",
    )
    cdi_specification: Path = Field(
        default=SPECIFICATION, description="The file that is replaced by what they wrote."
    )
    cdi_timeout: Seconds = Field(default=60.0, description="How long each of them may take.")
    host_driver_root: Path = Field(
        default=Path("/"),
        validation_alias=_named("NVIDIA_DRIVER_ROOT", "DRIVER_ROOT", "host_driver_root"),
        description="Where the driver's files lie on the host; for the CDI specification.",
    )
    host_dev_root: Path | None = Field(
        default=None,
        validation_alias=_named("NVIDIA_DEV_ROOT", "host_dev_root"),
        description="The directory on the host whose `dev` holds the device nodes; as NVIDIA_DRIVER_ROOT by default.",
    )
    cdi_hook: str = Field(
        default="/usr/local/nvidia/toolkit/nvidia-cdi-hook",
        validation_alias=_named("NVIDIA_CDI_HOOK_PATH", "cdi_hook"),
        description="nvidia-cdi-hook on the host, for the CDI specification.",
    )

    mig_strategy: Strategy = Field(
        default="none",
        description="The device plugin's MIG strategy where the Node has no label nvidia.com/mig.strategy.",
    )
    check_strategy: bool = Field(
        default=True,
        description="Refuse a layout that the device plugin cannot advertise under the node's strategy.",
    )
    gpu_resources: Words = Field(
        default=("nvidia.com/gpu*", "nvidia.com/mig-*"),
        description="Patterns of resource names whose requests make a pod a GPU pod.",
    )

    host_root_mount: Path = Field(
        default=Path("/host"),
        validation_alias=_named("HOST_ROOT_MOUNT", "host_root_mount"),
        description="Where the host's root directory is mounted in this container.",
    )
    pod_resources_socket: Path | None = Field(
        default=None,
        description="The kubelet's PodResources socket; by default kubelet.sock in /var/lib/kubelet/pod-resources, "
        "here or below HOST_ROOT_MOUNT. Without it every GPU pod of the node is drained.",
    )
    drain_scope: DrainScope = Field(
        default="affected",
        description="Who is drained: `affected`, only pods whose GPU or instance goes, or `all` GPU pods.",
    )
    drain_mode: DrainMode = Field(
        default="evict",
        description="How GPU pods leave: `evict`, `delete`, `wait` for their end, or `off` (none is made to).",
    )
    drain_timeout: Seconds = Field(
        default=600.0, description="How long draining may take, grace periods included, before the run fails."
    )
    drain_margin: Seconds = Field(
        default=30.0, description="How much longer than its grace period a pod may take to be gone."
    )
    drain_longest: Seconds = Field(
        default=3600.0,
        description="The longest drain, whatever the grace periods are: it lasts at least as long as the longest of "
        "them and MIG_MANAGER_DRAIN_MARGIN.",
    )
    drain_grace_period: int | None = Field(
        default=None, ge=0, description="Grace period of drained pods; each pod's own by default."
    )
    evict_bare_pods: bool = Field(
        default=False, description="Also evict GPU pods that no controller brings back."
    )
    evict_empty_dir_pods: bool = Field(
        default=True, description="Also evict GPU pods with emptyDir volumes, whose data ends with them."
    )
    settle_timeout: Seconds = Field(
        default=60.0, description="How long pods just bound to the node may take to be known to the kubelet."
    )

    operands_file: Path | None = Field(
        default=None,
        description="List of the GPU clients that a change stops and starts again, such as a copy of "
        "config/operands.yaml; by default those of the GPU Operator. Read once, at the start.",
    )
    operand_namespace: str = Field(
        default="",
        validation_alias=_named("DEFAULT_GPU_CLIENTS_NAMESPACE", "operand_namespace"),
        description="Namespace of the GPU clients (device plugin, GFD, DCGM, validator); empty means any.",
    )
    operand_timeout: Seconds = Field(
        default=300.0, description="How long the pods of paused operands may take to go."
    )
    resources_timeout: Seconds = Field(
        default=360.0,
        description="How long the kubelet may take to advertise the new resources. A kubelet without changes "
        "reports every five minutes.",
    )

    remove_stale_resources: bool = Field(
        default=False,
        description="Take nvidia.com/mig-* resources of former layouts, which the kubelet shows with 0 for ever, out "
        "of the Node's status. Follows the whole Node all the time, and needs permission to patch nodes/status.",
    )
    with_shutdown_host_gpu_clients: bool = Field(
        default=False,
        validation_alias=_named("WITH_SHUTDOWN_HOST_GPU_CLIENTS", "with_shutdown_host_gpu_clients"),
        description="Stop the systemd units of the host that GPU_CLIENTS_FILE lists while GPUs are changed.",
    )
    gpu_clients_file: Path | None = Field(
        default=None,
        validation_alias=_named("GPU_CLIENTS_FILE", "gpu_clients_file"),
        description="File that lists them: `version: v1`, `systemd-services: [...]`; read anew for every run.",
    )
    dbus_address: str = Field(
        default="",
        pattern=r"^(unix:(path|abstract)=.+)?$",
        validation_alias=_named("DBUS_SYSTEM_BUS_ADDRESS", "dbus_address"),
        description="D-Bus address of the host's system bus, such as `unix:path=/bus`; by default system_bus_socket "
        "in /run/dbus below HOST_ROOT_MOUNT.",
    )
    host_service_timeout: Seconds = Field(
        default=120.0,
        description="How long a host service may take to stop, and all of them to be started again.",
    )
    journal_file: Path | None = Field(
        default=None,
        description="File on the host that names the stopped host services as well, for a start without API "
        "server or Node; `off`: none. By default /var/lib/mig-manager/journal.json below HOST_ROOT_MOUNT.",
    )

    max_parallel_nodes: int = Field(
        default=0,
        ge=0,
        description="How many nodes of the fleet, or of a pool, may change at once. 0: any number.",
    )
    pool_label: str = Field(
        default="",
        description="Node label whose values make pools: each value has a limit of its own. Empty: one pool.",
    )
    pool_limits: PoolLimits = Field(
        default=(),
        description='Pools with another limit than MIG_MANAGER_MAX_PARALLEL_NODES, as in `["a100=5", "h100=2"]`.',
    )
    slot_timeout: float = Field(
        default=21600.0,
        ge=0,
        description="How long a node waits for its turn before the run fails. 0: for ever.",
    )
    slot_lease: Seconds = Field(
        default=60.0,
        description="How long a node that does not answer keeps its turn if it has not begun. The same on all nodes.",
    )
    slot_abandoned: Seconds = Field(
        default=7200.0,
        description="How long a node that died in the middle of a change keeps its turn, unless its Node is deleted.",
    )
    edited_layouts: EditedLayouts = Field(
        default="slot",
        description="What an edit of the layout that a node has does: `slot`, applied, one node at a time where no "
        "limit is set, and only reported where Leases are not permitted; `always`, there on all nodes at once; "
        "`report`, only reported.",
    )
    maintenance_windows: Windows = Field(
        default=(),
        description="When nodes may be changed: five cron fields and a duration each, as in "
        '`["0 22 * * mon-fri 6h"]`. Empty: always.',
    )
    maintenance_timezone: Zone = Field(
        default="UTC", description="Time zone of the windows, such as `Europe/Berlin`."
    )

    retry_first: Seconds = Field(default=30.0, description="Wait before the first retry; doubles each time.")
    retry_longest: Seconds = Field(default=600.0, description="The longest wait between two retries.")
    retry_attempts: int = Field(
        default=5,
        ge=1,
        description="Attempts at draining or freeing GPUs before only a change starts another.",
    )

    stop_timeout: Seconds = Field(
        default=18.0,
        description="How long after SIGTERM the daemon leaves however far it is, such as while a driver call hangs; "
        "shorter than the pod's grace period.",
    )
    watch_seconds: Seconds = Field(
        default=45.0,
        description="The longest time for one stream of a watch; a connection that died silently is noticed a "
        "few seconds after it.",
    )
    # Not called ..._PORT: Kubernetes sets MIG_MANAGER_HTTP_PORT for a Service named mig-manager-http, and the like.
    listen: Listen = Field(
        default="9409",
        pattern=r"^(off|(\S+:)?[0-9]{1,5})$",
        description="Port of the pages /livez, /readyz, /metrics and /status, on POD_IP or, without it, on 127.0.0.1; "
        "or address and port, such as `0.0.0.0:9409`; `off`: there are none.",
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(default="INFO", description="Log level.")
    log_format: Literal["auto", "text", "json"] = Field(
        default="auto",
        description="`text` for people, `json` lines for collectors; `auto`: text on a terminal.",
    )

    @property
    def listen_on(self) -> tuple[str, int] | None:
        """Address and port of the pages; None: there are none."""
        if self.listen == "off":
            return None
        address = self.listen.rpartition(":")[0].strip("[]")
        return address or self.pod_ip or "127.0.0.1", port_of(self.listen)

    @property
    def layouts_namespace(self) -> str:
        """Where the ConfigMap of layouts lies."""
        return self.config_map_namespace or self.pod_namespace

    @property
    def journal_copy(self) -> Path | None:
        """Where the copy of the journal lies; None: there is none."""
        if self.journal_file is None:
            # Nothing is mounted where this process runs on the host itself.
            root = self.host_root_mount if self.host_root_mount.is_dir() else Path("/")
            return root / "var/lib/mig-manager/journal.json"
        return None if self.journal_file == Path("off") else self.journal_file


def environment_name(field: str) -> str:
    """The environment variable of a setting: NVIDIA's name where there is one, else `MIG_MANAGER_...`."""
    alias = Settings.model_fields[field].validation_alias
    if isinstance(alias, AliasChoices):
        return str(alias.choices[0])
    return PREFIX + field.upper()


class SettingsError(ValueError):
    """A setting does not fit. `str(error)` is one line a finding, for the user."""


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment.

    Raises:
        SettingsError: a value does not fit; the message names the variable, the value and what is allowed.
    """
    try:
        settings = Settings(**overrides)
    except ValidationError as error:
        raise SettingsError(_in_words(error)) from None
    if not settings.node_name:
        raise SettingsError("NODE_NAME is not set: the daemon has to know which Node it manages")
    return settings


def _in_words(error: ValidationError) -> str:
    """One line a finding."""
    lines = []
    for finding in error.errors():
        place = str(finding["loc"][0]) if finding["loc"] else "settings"
        name = environment_name(place) if place in Settings.model_fields else place
        problem = finding["msg"].removeprefix("Value error, ").partition(", unable to")[0]
        if finding["type"] == "literal_error":
            choices = re.findall("'([^']*)'", finding["ctx"]["expected"])
            problem += hint(nearest(str(finding["input"]), choices, 1))
        elif finding["type"].startswith("bool"):
            problem = "true or false is wanted"
        lines.append(f"{name}: {finding['input']!r} does not fit: {problem}")
    return "\n".join(lines)
