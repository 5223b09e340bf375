"""A simulated GPU node with the real daemon on it, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import pytest

from mig_manager.cluster.operands import PAUSED
from mig_manager.simulation.api.faults import Request
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import CONFIGMAPS, EVENTS, NODES, PODS
from mig_manager.simulation.workloads import NAMESPACE as WORKLOADS
from mig_manager.simulation.world import CONFIG_KEY, CONFIG_MAP, NAMESPACE, SimulatedCluster
from tests.daemon.audit import foreign_writes
from tests.daemon.forked import ForkedDaemon
from tests.daemon.history import History
from tests.shipped import shipped_policy, shipped_rules

CONFIG = "nvidia.com/mig.config"
STATE = "nvidia.com/mig.config.state"
OPERATOR = "gpu-operator"
PATIENCE = 120.0
_REAL = "MIG_MANAGER_E2E_KUBECONFIG"
ROOT = Path(__file__).parents[2]

LAYOUTS = """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  small:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
  balanced:
    - devices: all
      mig-enabled: true
      mig-devices: {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}
  one-gpu:
    - devices: [0]
      mig-enabled: true
      mig-devices: {"1g.10gb": 7}
    - devices: [1]
      mig-enabled: true
      mig-devices: {"3g.40gb": 2}
  impossible:
    - devices: all
      mig-enabled: true
      mig-devices: {"3g.40gb": 2, "1g.10gb": 1}
  other-board:
    - devices: all
      mig-enabled: true
      mig-devices: {"2g.10gb": 3}
"""


def real_control_plane() -> Path | None:
    """The administrator's kubeconfig of a control plane without nodes, on which the tests are to run."""
    named = os.environ.get(_REAL)
    return None if named is None else Path(named)


def node_lifetime(fixture_name: str, config: pytest.Config) -> Literal["function", "module"]:
    """The scope of a node that the tests of a module share; a real control plane has only one node at a time."""
    return "module" if real_control_plane() is None else "function"


class GpuNode:
    """Two A100s, the GPU Operator's pods, and the daemon when `start` is called.

    The API server enforces the rules and the admission policy of deploy/, and the daemon is never denied anything.
    """

    def __init__(
        self,
        directory: Path,
        *,
        layouts: str = LAYOUTS,
        workloads: bool = False,
        rules: Sequence[str] = (),
        **options: Any,
    ) -> None:
        """`rules`: components of deploy/rbac that are granted as well; `grants` instead of all that is shipped."""
        self.directory = directory
        self._shipped = "grants" not in options
        options.setdefault("grants", shipped_rules(*rules))
        options.setdefault("admit", shipped_policy())
        options.setdefault("delays", Delays.fast())
        options.setdefault("control_plane", real_control_plane())
        self.cluster = SimulatedCluster(directory, layouts=layouts, workloads=workloads, **options)
        self.log = directory / "daemon.log"
        self.log.touch()
        self.environment: dict[str, str] = {}
        self.ends: list[int] = []
        """Exit statuses of daemons that ended with the node."""
        self._settings: dict[str, str] = {}
        self._daemon: subprocess.Popen[bytes] | ForkedDaemon | None = None
        self._log_from = 0
        self._events_before: dict[str, int] = {}

    def __enter__(self) -> Self:
        self.cluster.while_down = self._ended_with_the_node
        self.cluster.__enter__()
        self.cluster.wait_ready()
        self.history = History(self.cluster.store)
        self.first_labels = self.labels
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.cluster.power.stop()
        if self.runs:
            self.kill()
        self.cluster.__exit__(kind, *exc)
        if kind is None:
            self._audit()

    def _audit(self) -> None:
        """In no test does the daemon write anything on a Node but what is its own, or ask for what it may not."""
        if not self.cluster.simulated:
            return
        requests = self.cluster.api.requests
        assert foreign_writes(requests.all(), self.cluster.node) == []
        if self._shipped:
            assert requests.denied(self.cluster.account.name) == frozenset()

    # The daemon.

    def start(self, *, command: Sequence[str | Path] = (), **settings: str) -> None:
        """Start the daemon with these environment variables on top; an empty one counts as not set.

        `command` starts it otherwise than by its main function.
        """
        environment = {**os.environ, **self.cluster.daemon_environment(), **self.environment, **settings}
        environment["PYTHONPATH"] = str(ROOT)
        environment.pop(_REAL, None)
        self._settings = settings
        if not command:
            self._daemon = ForkedDaemon(environment, self.log)
            return
        with self.log.open("ab") as log:
            self._daemon = subprocess.Popen(list(command), env=environment, stdout=log, stderr=log)

    @contextmanager
    def _ended_with_the_node(self) -> Iterator[None]:
        """The daemon's pod: told to end when the node goes down, and started again when it is up."""
        ran, settings = self.runs, self._settings
        if ran:
            self.ends.append(self.terminate())
        yield
        if ran:
            self.start(**settings)

    def run_to_end(self, **settings: str) -> tuple[int, str]:
        """Start `python -m mig_manager.daemon` where it is bound to end; gives exit status and what it wrote."""
        self.start(command=[sys.executable, "-m", "mig_manager.daemon"], **settings)
        return self.daemon.wait(PATIENCE), self.logged()

    @property
    def runs(self) -> bool:
        """Whether the daemon runs."""
        return self._daemon is not None and self._daemon.poll() is None

    @property
    def daemon(self) -> subprocess.Popen[bytes] | ForkedDaemon:
        assert self._daemon is not None
        return self._daemon

    def kill(self) -> None:
        """SIGKILL."""
        self.daemon.kill()
        self.daemon.wait()

    def terminate(self) -> int:
        """SIGTERM; gives the exit status."""
        self.daemon.terminate()
        return self.daemon.wait(PATIENCE)

    def logged(self) -> str:
        """What the daemons have written since the last `forget`."""
        return self.log.read_text()[self._log_from :]

    def forget(self) -> None:
        """Begin anew with what was said: versions of the Node, Events, log, requests, NVML calls."""
        self.history.forget()
        self._log_from = len(self.log.read_text())
        self._events_before = {
            each["metadata"]["name"]: each.get("count", 1) for each in self.cluster.store.list(EVENTS)[0]
        }
        self._audit()
        if self.cluster.simulated:
            self.cluster.api.requests.clear()
        self.cluster.gpus.record_calls()

    # What users do.

    def label(self, layout: str | None) -> None:
        """Set the label, or remove it."""
        self.patch_node(labels={CONFIG: layout})

    def patch_node(
        self,
        *,
        labels: Mapping[str, str | None] | None = None,
        annotations: Mapping[str, str | None] | None = None,
        unschedulable: bool | None = None,
    ) -> None:
        """Change the Node; None removes a key."""

        def change(node: Object) -> Object:
            for kind, wanted in (("labels", labels), ("annotations", annotations)):
                held = node["metadata"].setdefault(kind, {})
                held.update(wanted or {})
                node["metadata"][kind] = {key: value for key, value in held.items() if value is not None}
            if unschedulable is not None:
                node["spec"]["unschedulable"] = unschedulable
            return node

        self.cluster.store.update(NODES, None, self.cluster.node, change)

    def taint(self, *keys: str) -> None:
        """Set these NoSchedule taints, and no others."""

        def change(node: Object) -> Object:
            node["spec"]["taints"] = [{"key": key, "effect": "NoSchedule"} for key in keys]
            return node

        self.cluster.store.update(NODES, None, self.cluster.node, change)

    def register_anew(self, layout: str, **spec: Any) -> None:
        """Delete the Node, and create it again as a kubelet does, with a label and a spec."""
        old = self.cluster.node_object()
        spec["providerID"] = old["spec"]["providerID"]
        meta = {"name": self.cluster.node, "labels": {**self.first_labels, CONFIG: layout}}
        self.cluster.store.delete(NODES, None, self.cluster.node)
        self.cluster.store.create(NODES, {"metadata": meta, "spec": spec, "status": old["status"]})

    def set_layouts(self, text: str) -> None:
        """Replace the content of the ConfigMap."""

        def change(config_map: Object) -> Object:
            config_map["data"] = {CONFIG_KEY: text}
            return config_map

        self.cluster.store.update(CONFIGMAPS, NAMESPACE, CONFIG_MAP, change)

    def delete_layouts(self) -> None:
        """Delete the ConfigMap."""
        self.cluster.store.delete(CONFIGMAPS, NAMESPACE, CONFIG_MAP)

    # What is to be seen.

    @property
    def labels(self) -> dict[str, str]:
        return dict(self.cluster.node_object()["metadata"].get("labels", {}))

    @property
    def annotations(self) -> dict[str, str]:
        return dict(self.cluster.node_object()["metadata"].get("annotations", {}))

    @property
    def state(self) -> str | None:
        return self.labels.get(STATE)

    @property
    def status(self) -> dict[str, Any]:
        """The status annotation; empty while there is none."""
        found: dict[str, Any] = json.loads(self.annotations.get("mig-manager/status", "{}"))
        return found

    @property
    def taints(self) -> set[str]:
        """Keys."""
        return {each["key"] for each in self.cluster.node_object()["spec"].get("taints", [])}

    @property
    def cordoned(self) -> bool:
        return bool(self.cluster.node_object()["spec"].get("unschedulable"))

    @property
    def deploy_labels(self) -> dict[str, str]:
        """The operands' deploy labels."""
        return {key: value for key, value in self.labels.items() if key.startswith("nvidia.com/gpu.deploy.")}

    @property
    def allocatable(self) -> dict[str, int]:
        """The GPU resources on offer, without zeros."""
        return {name.partition("/")[2]: count for name, count in self.cluster.allocatable().items() if count}

    @property
    def instances(self) -> list[list[str]]:
        """Of each GPU: its instances as `profile@start`, sorted; `["off"]` with MIG off."""
        found = []
        for gpu in self.cluster.gpus.snapshot()["gpus"]:
            held = [f"{each['profile']}@{each['start']}" for each in gpu["instances"]]
            found.append(sorted(held) if gpu["mig"]["current"] else ["off"])
        return found

    @property
    def clients_run(self) -> bool:
        """Whether every deploy label is as the GPU Operator sets it."""
        return PAUSED not in self.deploy_labels.values()

    @property
    def used(self) -> frozenset[tuple[str, str]]:
        """Verb and resource of what the daemon was granted and has asked for since the last `forget`."""
        return self.cluster.api.requests.used(self.cluster.account.name)

    def events(self) -> list[tuple[str, str]]:
        """Reason and message of each Event of the daemon since the last `forget`, as often as it was counted."""
        return [
            (each["reason"], each["message"])
            for each in self.cluster.store.list(EVENTS)[0]
            if each.get("source", {}).get("component") == "mig-manager"
            for _ in range(each["count"] - self._events_before.get(each["metadata"]["name"], 0))
        ]

    def pods(self, namespace: str = WORKLOADS) -> dict[str, Object]:
        """Pods by name."""
        return {each["metadata"]["name"]: each for each in self.cluster.store.list(PODS, namespace)[0]}

    def changes_by_the_daemon(self) -> list[str]:
        """Verb and resource of its requests that change something, Events left out."""
        return [
            f"{each.verb} {each.resource}"
            for each in self.cluster.api.requests.all()
            if "kube" not in each.user_agent
            and each.method != "GET"
            and each.resource not in ("events", "selfsubjectaccessreviews")
        ]

    # Waiting.

    def eventually(self, look: Callable[[], Any], what: str = "it") -> None:
        """Wait for something about the GPUs, whose file tells nobody that it has changed."""
        end = time.monotonic() + PATIENCE
        while not look():
            assert time.monotonic() < end, f"{what}: not within {PATIENCE:g} s\n{self.logged()[-4000:]}"
            time.sleep(0.02)

    def wait_event(self, reason: str, part: str) -> None:
        """Wait for an Event of the daemon with that reason, and that part in its message."""
        self.wait(
            lambda: any(each == reason and part in message for each, message in self.events()),
            f"Event {reason}",
        )

    def wait(self, look: Callable[[], Any], what: str, timeout: float = PATIENCE) -> Any:
        """What `look` gives once it is true; the daemon's log is in the message if it never is."""
        try:
            return self.cluster.wait_for(look, what, timeout=timeout)
        except TimeoutError as error:
            raise AssertionError(f"{error}\n{self.status}\n{self.logged()[-4000:]}") from None

    def wait_requests(self, wanted: Callable[[Request], bool], count: int = 1) -> None:
        """Wait until the API server has answered so many requests of that kind by the daemon."""
        mine = "mig-manager"
        assert self.cluster.api.requests.wait_for(
            lambda each: each.user_agent == mine and wanted(each), PATIENCE, count=count
        ), self.logged()[-4000:]

    def ended(self, layout: str, *, timeout: float = PATIENCE) -> dict[str, Any]:
        """Wait until the Node says how a run for that layout ended; gives the status."""

        def look() -> dict[str, Any] | None:
            meta = self.cluster.node_object()["metadata"]
            state = meta["labels"].get(STATE)
            status: dict[str, Any] = json.loads(meta.get("annotations", {}).get("mig-manager/status", "{}"))
            done = status.get("layout") == layout and state == status.get("state")
            return status if done and state not in ("pending", "rebooting") else None

        found: dict[str, Any] = self.wait(look, f"the end of a run for {layout}", timeout)
        return found

    def becomes(self, layout: str, state: str = "success") -> dict[str, Any]:
        """Ask for a layout, and wait for the run to end in that state."""
        self.label(layout)
        status = self.ended(layout)
        assert status["state"] == state, (status, self.logged()[-4000:])
        return status
