"""In the place of the GPU Operator's own mig-manager: started as its DaemonSet does it, with its environment and Role.

Facts: NVIDIA/gpu-operator, assets/state-mig-manager (DaemonSet, entry-point script, Roles, clients), what its
controller sets in TransformMIGManager, and what its validator writes to /run/nvidia/validations/driver-ready;
NVIDIA/mig-parted v0.15, cmd/nvidia-mig-manager/main.go (variables, and booleans by Go's strconv.ParseBool).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mig_manager.daemon.settings import Settings, load_settings
from mig_manager.simulation.resources import DEPLOYMENTS
from mig_manager.simulation.workloads import NAMESPACE as WORKLOADS
from tests.daemon.conftest import MakeNode
from tests.daemon.node import LAYOUTS, OPERATOR, ROOT, GpuNode
from tests.daemon.roles import GPU_OPERATOR
from tests.daemon.workloads import running, web

SMALL = [f"1g.10gb@{start}" for start in range(7)]
OURS = (
    "POD_NAMESPACE",
    "MIG_MANAGER_CONFIG_MAP_NAME",
    "MIG_MANAGER_CONFIG_MAP_NAMESPACE",
    "MIG_MANAGER_CONFIG_MAP_KEY",
)
"""What the operator's DaemonSet does not set; nor does it tell the strategy, which is a label of the Node."""
ENTRY_POINT = """\
#!/bin/bash
until [[ -f "$1" ]]; do sleep 0.1; done
set -o allexport
cat "$1"
. "$1"
export WITH_SHUTDOWN_HOST_GPU_CLIENTS=$IS_HOST_DRIVER
exec nvidia-mig-manager
"""
"""What the operator's script does, and needs in the image."""
CHROOT = """\
#!/bin/sh
root=$1
shift
PATH=$root/usr/local/nvidia/toolkit:$PATH exec "$@"
"""
"""As `chroot` with the PATH of the image, for those who are not root."""
TOOLKIT = """\
#!/bin/sh
for each in "$@"; do
  case "$each" in --output=*) echo "$0 $@" > "${each#--output=}" ;; esac
done
"""
IN_A_CONTAINER = """\
IS_HOST_DRIVER=false
NVIDIA_DRIVER_ROOT=/run/nvidia/driver
DRIVER_ROOT_CTR_PATH=/driver-root
NVIDIA_DEV_ROOT=/
DEV_ROOT_CTR_PATH={host}
"""
ON_THE_HOST = """\
IS_HOST_DRIVER=true
NVIDIA_DRIVER_ROOT=/
DRIVER_ROOT_CTR_PATH=/host
NVIDIA_DEV_ROOT=/
DEV_ROOT_CTR_PATH=/host
"""
"""What the operator's validator writes to /run/nvidia/validations/driver-ready."""


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def started_by_the_operator(node: GpuNode, directory: Path) -> Path:
    """Start the daemon, whose driver gets ready a moment later; gives the CDI specification."""
    programs = directory / "bin"
    write_program(
        programs / "nvidia-mig-manager", f'#!/bin/sh\nexec {sys.executable} -m mig_manager.daemon "$@"\n'
    )
    write_program(programs / "chroot", CHROOT)
    write_program(programs / "entrypoint.sh", ENTRY_POINT)
    write_program(node.cluster.host / "usr/local/nvidia/toolkit/nvidia-ctk", TOOLKIT)
    layouts = directory / "config.yaml"
    layouts.write_text(LAYOUTS)
    clients = directory / "clients.yaml"
    clients.write_text("version: v1\nsystemd-services:\n  - nvidia-dcgm.service\n")
    specification = directory / "cdi.yaml"
    ready = directory / "driver-ready"
    node.start(
        command=[programs / "entrypoint.sh", ready],
        PATH=f"{programs}:/usr/bin:/bin",
        CONFIG_FILE=str(layouts),
        GPU_CLIENTS_FILE=str(clients),
        DEFAULT_GPU_CLIENTS_NAMESPACE=OPERATOR,
        CDI_ENABLED="true",
        NVIDIA_CDI_HOOK_PATH="/usr/local/nvidia/toolkit/nvidia-cdi-hook",
        MIG_MANAGER_CDI_SPECIFICATION=str(specification),
        MIG_MANAGER_RETRY_FIRST="0.3",
        MIG_MANAGER_RETRY_LONGEST="0.6",
        **dict.fromkeys(OURS, ""),
    )
    written = directory / "driver-ready.new"
    written.write_text(IN_A_CONTAINER.format(host=node.cluster.host))
    written.replace(ready)
    return specification


def denied(node: GpuNode) -> frozenset[tuple[str, str]]:
    return node.cluster.api.requests.denied(node.cluster.account.name)


def remove_web(node: GpuNode) -> None:
    node.cluster.store.delete(DEPLOYMENTS, WORKLOADS, "web")
    node.wait(lambda: running(node, "web") is None, "the end of the pod")


def test_it_changes_gpus_with_the_role_of_the_operator_and_drains_nobody(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node(grants=GPU_OPERATOR)
    specification = started_by_the_operator(node, tmp_path)
    node.becomes("small")
    assert node.instances == [SMALL, SMALL]
    assert node.allocatable == {"mig-1g.10gb": 14}
    assert node.clients_run
    made = specification.read_text()
    assert made.startswith(f"{node.cluster.host}/usr/local/nvidia/toolkit/nvidia-ctk cdi generate ")
    assert "--driver-root=/run/nvidia/driver --dev-root=/ " in made
    assert denied(node) == frozenset()
    node.eventually(lambda: "Event Applied (only logged): small" in node.logged(), "the end in the log")
    for lacking in (
        "No permission to create pods/eviction: GPU pods are not evicted: the drain mode is off",
        "No permission to list pods: of pods outside the namespace",
        "No permission to create events in namespace default: Events are only logged",
    ):
        assert lacking in node.logged()
    assert "watch pods" not in node.logged()

    name = web(node)
    status = node.becomes("balanced", "failed")
    assert status["reason"] == "DrainRequired"
    assert "no permission to create pods/eviction, list pods (see docs/permissions.md)" in status["message"]
    assert f"{WORKLOADS}/{name}" in status["message"]
    assert not node.cordoned
    assert running(node, "web") == name
    assert node.instances == [SMALL, SMALL]
    remove_web(node)
    node.wait(lambda: node.state == "success", "the retry")
    assert denied(node) == frozenset()
    assert node.events() == []


NVIDIAS = {
    "NODE_NAME": ("node_name", "gpu-1", "gpu-1"),
    "KUBECONFIG": ("kubeconfig", "/k", Path("/k")),
    "CONFIG_FILE": ("config_file", "/mig-parted-config/config.yaml", Path("/mig-parted-config/config.yaml")),
    "DEFAULT_CONFIG_FILE": ("default_config_file", "/d.yaml", Path("/d.yaml")),
    "GPU_CLIENTS_FILE": ("gpu_clients_file", "/gpu-clients/clients.yaml", Path("/gpu-clients/clients.yaml")),
    "HOST_ROOT_MOUNT": ("host_root_mount", "/elsewhere", Path("/elsewhere")),
    "DEFAULT_GPU_CLIENTS_NAMESPACE": ("operand_namespace", "gpu-operator", "gpu-operator"),
    "WITH_REBOOT": ("with_reboot", "true", True),
    "WITH_SHUTDOWN_HOST_GPU_CLIENTS": ("with_shutdown_host_gpu_clients", "true", True),
    "CDI_ENABLED": ("cdi_enabled", "true", True),
    "NVIDIA_DRIVER_ROOT": ("host_driver_root", "/run/nvidia/driver", Path("/run/nvidia/driver")),
    "DRIVER_ROOT": ("host_driver_root", "/run/nvidia/driver", Path("/run/nvidia/driver")),
    "DRIVER_ROOT_CTR_PATH": ("driver_root", "/driver-root", Path("/driver-root")),
    "NVIDIA_DEV_ROOT": ("host_dev_root", "/", Path("/")),
    "DEV_ROOT_CTR_PATH": ("dev_root", "/host", Path("/host")),
    "NVIDIA_CDI_HOOK_PATH": ("cdi_hook", "/x/nvidia-cdi-hook", "/x/nvidia-cdi-hook"),
    "POD_NAMESPACE": ("pod_namespace", "gpu-operator", "gpu-operator"),
}


def settings_of(monkeypatch: pytest.MonkeyPatch, **environment: str) -> Settings:
    for name in NVIDIAS:
        monkeypatch.delenv(name, raising=False)
    for name, value in {"NODE_NAME": "gpu-1", **environment}.items():
        monkeypatch.setenv(name, value)
    return load_settings()


def test_with_the_hosts_own_driver_its_units_are_stopped(tmp_path: Path) -> None:
    """The entry point with what the validator writes there; what the daemon would make of it is shown."""
    shown = "with_shutdown_host_gpu_clients driver_root host_driver_root dev_root host_dev_root"
    script = (
        "from mig_manager.daemon.settings import load_settings\n"
        f"settings = load_settings()\nprint(*(getattr(settings, each) for each in '{shown}'.split()))\n"
    )
    write_program(tmp_path / "nvidia-mig-manager", f"#!{sys.executable}\n{script}")
    write_program(tmp_path / "entrypoint.sh", ENTRY_POINT)
    ready = tmp_path / "driver-ready"
    ready.write_text(ON_THE_HOST)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "NODE_NAME": "gpu-1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [tmp_path / "entrypoint.sh", ready], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "True /host / /host /"


@pytest.mark.parametrize("name", NVIDIAS)
def test_nvidias_variables_are_settings(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    field, text, value = NVIDIAS[name]
    assert getattr(settings_of(monkeypatch, **{name: text}), field) == value


def test_of_two_names_for_the_driver_root_the_newer_one_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings_of(monkeypatch, NVIDIA_DRIVER_ROOT="/a", DRIVER_ROOT="/b").host_driver_root == Path("/a")


@pytest.mark.parametrize("name", ["WITH_REBOOT", "WITH_SHUTDOWN_HOST_GPU_CLIENTS", "CDI_ENABLED"])
def test_booleans_are_written_as_nvidias_manager_takes_them(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    field = NVIDIAS[name][0]
    for yes in ("1", "t", "T", "true", "TRUE", "True"):
        assert getattr(settings_of(monkeypatch, **{name: yes}), field) is True
    for no in ("0", "f", "F", "false", "FALSE", "False", ""):
        assert getattr(settings_of(monkeypatch, **{name: no}), field) is False


def test_what_is_not_followed_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/migration.md says why."""
    settings_of(
        monkeypatch,
        HOST_NVIDIA_DIR="/usr/local/nvidia",
        HOST_MIG_MANAGER_STATE_FILE="/etc/systemd/system/nvidia-mig-manager.service.d/override.conf",
        HOST_KUBELET_SYSTEMD_SERVICE="kubelet.service",
    )
