"""A whole simulated cluster: API server, controllers, a GPU node, the GPU Operator's pods, and workloads."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from mig_manager.planning.catalogue import parse_gpus
from mig_manager.simulation.api.admission import Admit
from mig_manager.simulation.api.authorization import User
from mig_manager.simulation.api.grants import Grant
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.control.foreign import ForeignControlPlane
from mig_manager.simulation.control.plane import Access, ControlPlane, OwnControlPlane
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.examples import layout_file, workloads
from mig_manager.simulation.gpus import SimulatedGpus
from mig_manager.simulation.loop import Loop
from mig_manager.simulation.node.containers import Programs
from mig_manager.simulation.node.hardware import Hardware
from mig_manager.simulation.node.kubelet import Kubelet
from mig_manager.simulation.node.podresources import PodResourcesServer, answers_of
from mig_manager.simulation.objects import Change, Object, Store
from mig_manager.simulation.operands import NAMESPACE as OPERANDS
from mig_manager.simulation.operands.deviceplugin import PluginError, Strategy, device_map, shared
from mig_manager.simulation.operands.dradriver import devices as claimable
from mig_manager.simulation.operands.manifests import daemon_sets, node_labels
from mig_manager.simulation.operands.programs import PROGRAMS
from mig_manager.simulation.podspec import is_finished, is_ready
from mig_manager.simulation.power import Power
from mig_manager.simulation.resources import (
    CONFIGMAPS,
    DAEMON_SETS,
    NODES,
    PODS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
)
from mig_manager.simulation.store import ObjectExistsError
from mig_manager.simulation.workloads import NAMESPACE as WORKLOADS

T = TypeVar("T")

NAMESPACE = "mig-manager"
CONFIG_MAP = "mig-manager-layouts"
CONFIG_KEY = "config.yaml"
ACCOUNT = "mig-manager"
"""The daemon's service account, in its namespace."""
_RUNTIME_CLASS = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}


class SimulatedCluster:
    """Runs from enter to exit of the context manager. Real time; the delays say how long things take."""

    def __init__(
        self,
        directory: Path,
        gpus: str = "2xA100-SXM4-80GB",
        *,
        delays: Delays | None = None,
        strategy: Strategy = "mixed",
        node: str = "gpu-node-1",
        layouts: str | None = None,
        workloads: bool = True,
        dcgm: bool = False,
        dra: bool = False,
        replicas: int = 1,
        port: int = 0,
        pod_resources: bool = True,
        gpu_options: Mapping[str, Any] | None = None,
        grants: Sequence[Grant] | None = None,
        admit: Admit | None = None,
        control_plane: Path | None = None,
        programs: Programs | None = None,
    ) -> None:
        """State files and the kubeconfig go into `directory`.

        `gpus`: as on the command line; `layouts`: text of the layout file, else an example that suits
        the GPUs; `workloads`: run some pods beside the operands; `dcgm`: with a DCGM host engine;
        `dra`: GPUs are had by ResourceClaims, and no device plugin runs;
        `replicas`: as many pods share each device in time; `port` of the API server, 0 for a free one;
        `pod_resources`: the kubelet serves them, on a socket in `pod-resources/`; `gpu_options`: see
        GpuOptions; `grants`: what the daemon's service account may do, enforced by the API server;
        None: everything; `admit`: who is asked about each change besides; `control_plane`: kubeconfig of another
        program that is to be API server, controllers and scheduler, so that the node alone is simulated;
        `programs`: what containers run beside the operands.

        Raises:
            MigManagerError: `gpus` cannot be read.
        """
        models = parse_gpus(gpus)
        self.node = node
        self.strategy = strategy
        self.delays = delays or Delays()
        self.layouts = layout_file(models) if layouts is None else layouts
        self.host = directory / "host"
        options = {"host_files": str(self.host), **(gpu_options or {})}
        self.gpus = SimulatedGpus.create(directory / "gpus.json", models, **options)
        self.gpus.latency(**self.delays.nvml, reset=self.delays.reset)
        self.hardware = Hardware(self.gpus)
        self.account = User.service_account(NAMESPACE, ACCOUNT, node=node)
        self.kubeconfig = directory / "kubeconfig"
        self.daemon_kubeconfig = directory / "kubeconfig-daemon"
        self._models = models
        self._with_workloads = workloads
        self._dcgm = dcgm
        self._dra = dra
        self._replicas = replicas
        self._loop = Loop("simulated-cluster")
        access = Access(self.kubeconfig, self.daemon_kubeconfig, NAMESPACE, ACCOUNT, node, grants)
        self.simulated = control_plane is None
        """Whether the control plane is the simulation's own."""
        self._plane: ControlPlane
        if control_plane is None:
            delay = self.delays.controller
            self._plane = OwnControlPlane(access, self._loop, port=port, delay=delay, admit=admit)
        else:
            self._plane = ForeignControlPlane(control_plane, access)
        self.store: Store = self._plane.store
        capable = any(model.geometry is not None for model in models)
        self.kubelet = Kubelet(
            self.store,
            self.hardware,
            self._loop,
            name=node,
            delays=self.delays,
            programs={**PROGRAMS, **(programs or {})},
            labels=node_labels(mig_capable=capable, dra=dra),
        )
        self.pod_resources = PodResourcesServer(answers_of(self.kubelet), _socket(directory))
        self._with_pod_resources = pod_resources
        self.power = Power(self.gpus, self.reboot)
        self.while_down: Callable[[], AbstractContextManager[object]] = nullcontext
        """What else ends with the node and starts with it again; entered when it goes down, left when it is up."""
        self._leave: Callable[[], None] = lambda: None

    def __enter__(self) -> Self:
        sets = daemon_sets(self.strategy, dcgm=self._dcgm, dra=self._dra, replicas=self._replicas)
        self._plane.start()
        self._plane.make_namespace(OPERANDS, *(each["metadata"]["name"] for each in sets))
        self._plane.make_namespace(NAMESPACE, ACCOUNT)
        self._plane.make_namespace(WORKLOADS)
        with suppress(ObjectExistsError):
            self.store.create(RUNTIME_CLASSES, _RUNTIME_CLASS)
        self._leave = self.store.subscribe(self._changed)
        self._loop.start()
        self._loop.call(self.kubelet.start)
        if self._with_pod_resources:
            self.pod_resources.start()
        self.power.start()
        meta = {"name": CONFIG_MAP, "namespace": NAMESPACE}
        self.store.create(CONFIGMAPS, {"metadata": meta, "data": {CONFIG_KEY: self.layouts}})
        for each in sets:
            self.store.create(DAEMON_SETS, each)
        if self._with_workloads:
            for resource, obj in workloads(self._models, self.strategy):
                self.store.create(resource, obj)
        return self

    def __exit__(self, *_: object) -> None:
        self.power.stop()
        self._leave()
        self.pod_resources.stop()
        shutil.rmtree(self.pod_resources.socket.parent, ignore_errors=True)
        try:
            self._loop.close()
        finally:
            self._plane.stop()

    @property
    def api(self) -> ApiServer:
        """The simulated API server; NotSimulatedError where the control plane is another program."""
        return self._plane.server

    def reboot(self) -> None:
        """Restart the node, pods and all; comes back once its kubelet runs again."""
        with self.while_down():
            self._loop.call(self.kubelet.power_off)
            self.pod_resources.stop()
            time.sleep(self.delays.boot)
            self.gpus.reboot()
            self._loop.call(self.kubelet.start)
            if self._with_pod_resources:
                self.pod_resources.start()

    def daemon_environment(self) -> dict[str, str]:
        """What `python -m mig_manager.daemon` needs, on top of its usual environment, to manage this node."""
        state = ["--state", str(self.gpus.path)]
        reset = [sys.executable, "-m", "mig_manager.simulation.nvidia_smi", *state]
        modprobe = [sys.executable, "-m", "mig_manager.simulation.modprobe", *state]
        reboot = [sys.executable, "-m", "mig_manager.simulation.power", *state]
        return {
            "KUBECONFIG": str(self.daemon_kubeconfig),
            "NODE_NAME": self.node,
            "POD_NAMESPACE": NAMESPACE,
            "DEFAULT_GPU_CLIENTS_NAMESPACE": OPERANDS,
            "HOST_ROOT_MOUNT": str(self.host),
            "MIG_MANAGER_CONFIG_MAP_NAME": CONFIG_MAP,
            "MIG_MANAGER_CONFIG_MAP_NAMESPACE": NAMESPACE,
            "MIG_MANAGER_CONFIG_MAP_KEY": CONFIG_KEY,
            "MIG_MANAGER_MIG_STRATEGY": self.strategy,
            "MIG_MANAGER_POD_RESOURCES_SOCKET": str(self.pod_resources.socket),
            "MIG_MANAGER_NVML_LOADER": "mig_manager.simulation.nvml:install",
            "MIG_MANAGER_NVML_ARGUMENT": str(self.gpus.path),
            "MIG_MANAGER_RESET_COMMAND": json.dumps([*reset, "-r", "-i", "{addresses}"]),
            "MIG_MANAGER_MODPROBE_COMMAND": json.dumps(modprobe),
            "MIG_MANAGER_REBOOT_COMMAND": json.dumps(reboot),
            "MIG_MANAGER_PROC_ROOT": str(self.host / "proc"),
            "MIG_MANAGER_SYS_ROOT": str(self.host / "sys"),
            "DEV_ROOT_CTR_PATH": str(self.host),
            "MIG_MANAGER_LISTEN": "127.0.0.1:0",
        }

    def wait_for(self, look: Callable[[], T | None], what: str, *, timeout: float = 60.0) -> T:
        """What `look` returns, once that is true; it is called again after every change in the API.

        Raises:
            TimeoutError: names `what`.
        """
        changed = threading.Event()
        leave = self.store.subscribe(lambda _: changed.set())
        deadline = time.monotonic() + timeout
        try:
            while True:
                changed.clear()
                found = look()
                if found:
                    return found
                if not changed.wait(max(deadline - time.monotonic(), 0.0)):
                    raise TimeoutError(f"{what}: not within {timeout:g} s")
        finally:
            leave()

    def wait_ready(self, *, timeout: float = 60.0) -> None:
        """Wait until every operand is ready and the node offers what its GPUs hold now.

        Raises:
            TimeoutError: also where the GPUs do not suit the strategy, so that the plugin cannot start.
        """
        self.wait_for(self._ready, "operands and resources of the node", timeout=timeout)

    def node_object(self) -> Object:
        """The Node as it is now, to read, never to modify; KeyError if it was deleted."""
        return {each["metadata"]["name"]: each for each in self.store.snapshot(NODES)[0]}[self.node]

    def allocatable(self) -> dict[str, int]:
        """The extended resources that the Node offers, those with 0 too."""
        held = self.node_object()["status"]["allocatable"]
        return {name: int(amount) for name, amount in held.items() if name.startswith("nvidia.com/")}

    def _ready(self) -> bool:
        sets = self.store.snapshot(DAEMON_SETS, OPERANDS)[0]
        pods = [each for each in self.store.snapshot(PODS, OPERANDS)[0] if not is_finished(each)]
        wanted = sum(each.get("status", {}).get("desiredNumberScheduled", 1) for each in sets)
        if len(pods) != wanted or not all(is_ready(each) for each in pods):
            return False
        if self._dra:
            return self._offered_to_claims()
        try:
            devices = shared(device_map(self.hardware.gpus(), self.strategy), self._replicas)
        except PluginError:
            return False
        held = {name: len(ids) for name, ids in devices.items()}
        return held == {name: amount for name, amount in self.allocatable().items() if amount}

    def _offered_to_claims(self) -> bool:
        """Whether the ResourceSlices show what the GPUs hold."""
        slices = self.store.snapshot(RESOURCE_SLICES)[0]
        return [each for one in slices for each in one["spec"]["devices"]] == claimable(self.hardware.gpus())

    def _changed(self, change: Change) -> None:
        self._loop.post(lambda: self._dispatch(change))

    def _dispatch(self, change: Change) -> None:
        self.kubelet.changed(change)
        self._plane.changed(change)


def _socket(directory: Path) -> Path:
    """In the directory, unless that is too long for the address of a unix socket (108 bytes)."""
    path = directory / "pod-resources" / "kubelet.sock"
    return path if len(os.fsencode(path)) < 108 else Path(tempfile.mkdtemp(prefix="mig-")) / path.name
