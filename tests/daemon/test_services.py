"""GPU clients on the host: systemd units that stop for a change, and only those start again, whatever happens."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pynvml import NVML_ERROR_UNKNOWN

from mig_manager.simulation.messagebus import MessageBus
from mig_manager.simulation.resources import NODES
from mig_manager.simulation.systemd import SimulatedSystemd, UnitFile
from tests.daemon.node import GpuNode, node_lifetime
from tests.daemon.workloads import QUICK, amid_the_apply, made_as_new
from tests.requirements import need_dbus

DCGM, EXPORTER, IDLE = "nvidia-dcgm.service", "dcgm-exporter.service", "nvsm.service"
LIST = f"version: v1\nsystemd-services: [{DCGM}, {EXPORTER}, {IDLE}, missing.service]\n"
RUNNING = {DCGM: "active", EXPORTER: "active", IDLE: "inactive"}
STOPS = [f"StopUnit {EXPORTER}", f"StopUnit {DCGM}"]
STARTS = [f"StartUnit {DCGM}", f"StartUnit {EXPORTER}"]
BALANCED = ["1g.10gb@2", "1g.10gb@3", "2g.20gb@0", "3g.40gb@4"]
SMALL = [f"1g.10gb@{start}" for start in range(7)]
JOURNAL = "mig-manager/journal"
LONG = 60.0


class Host:
    """What a node's host runs beside Kubernetes. The DCGM engine keeps a GPU open while it is up."""

    def __init__(self, node: GpuNode, bus: MessageBus) -> None:
        self.node = node
        self.clients = node.directory / "clients.yaml"
        self.copy = node.cluster.host / "var/lib/mig-manager/journal.json"
        self.seen: list[tuple[str, bool]] = []
        """Of each unit that came up or went down: its name, and whether the node was fit for that then."""
        self.systemd = SimulatedSystemd(bus.address, changed=self._changed)
        self._held: int | None = None

    def restore(self) -> None:
        """As at first."""
        for unit in (
            UnitFile(DCGM),
            UnitFile(EXPORTER, requires=(DCGM,)),
            UnitFile(IDLE, active="inactive"),
        ):
            self.systemd.units[unit.name] = unit
        self._hold()
        self.clients.write_text(LIST)
        self.systemd.requests.clear()
        self.seen.clear()

    def _hold(self) -> None:
        if self._held is None:
            self._held = self.node.cluster.gpus.add_process(
                0, pid=777, name="nv-hostengine", kind="handle", cgroup="/system.slice/nvidia-dcgm.service"
            )

    def _changed(self, name: str, up: bool) -> None:
        if self.node.cluster.store.get(NODES, None, self.node.cluster.node) is not None:
            named = json.loads(self.node.annotations.get(JOURNAL, "{}")).get("services", [])
            copied = json.loads(self.copy.read_text())["services"] if self.copy.exists() else []
            self.seen.append((name, name in named and name in copied and not self.node.clients_run))
        if name == DCGM and up:
            self._hold()
        elif name == DCGM and self._held is not None:
            self.node.cluster.gpus.remove_process(self._held)
            self._held = None


@pytest.fixture(scope=node_lifetime)
def shared_host() -> Iterator[Host]:
    need_dbus()
    with (
        tempfile.TemporaryDirectory(prefix="mig-") as directory,
        GpuNode(Path(directory)) as node,
        MessageBus(node.cluster.host) as bus,
    ):
        host = Host(node, bus)
        node.environment = {
            "GPU_CLIENTS_FILE": str(host.clients),
            "WITH_SHUTDOWN_HOST_GPU_CLIENTS": "true",
            **QUICK,
            "MIG_MANAGER_HOST_SERVICE_TIMEOUT": "2",
        }
        with host.systemd:
            yield host


@pytest.fixture
def host(shared_host: Host) -> Host:
    """A node with layout `small`, on whose host the units are as at first."""
    shared_host.restore()
    made_as_new(shared_host.node)
    shared_host.restore()
    return shared_host


def test_units_stop_before_the_gpus_change_and_start_in_reverse_before_the_operands(host: Host) -> None:
    host.node.becomes("all-disabled")  # A reset, which the engine would not let happen.
    assert host.systemd.requests == STOPS + STARTS
    assert host.seen == [(EXPORTER, True), (DCGM, True), (DCGM, True), (EXPORTER, True)]
    assert host.systemd.states() == RUNNING
    phases = host.node.history.phases
    assert phases.index("PausingOperands") < phases.index("StoppingHostServices") < phases.index("Applying")
    assert JOURNAL not in host.node.annotations
    assert not host.copy.exists()


def test_where_nothing_changes_systemd_is_not_asked(host: Host) -> None:
    host.systemd.silent = True
    try:
        host.node.patch_node(labels={"nvidia.com/mig.config.state": None})
        host.node.terminate()
        host.node.start()
        host.node.wait(lambda: host.node.state == "success", "the look")
    finally:
        host.systemd.silent = False


def test_a_unit_that_does_not_stop_fails_the_run_and_the_others_run_again(host: Host) -> None:
    host.systemd.units[DCGM].stop_seconds = LONG
    status = host.node.becomes("balanced", "failed")
    assert (status["reason"], status["phase"]) == ("HostServiceError", "StoppingHostServices")
    assert f"{DCGM} did not stop within 2 s: it is deactivating" in status["message"]
    assert host.systemd.states() == RUNNING
    assert host.node.instances == [SMALL, SMALL]
    assert not host.node.cordoned
    assert JOURNAL not in host.node.annotations


def test_a_unit_that_does_not_start_hides_nothing_and_is_started_later_without_disturbing_anybody(
    host: Host,
) -> None:
    host.node.terminate()
    host.node.start(MIG_MANAGER_RETRY_FIRST="1")
    host.systemd.units[EXPORTER].failures = float("inf")
    status = host.node.becomes("balanced", "failed")
    assert (status["reason"], status["phase"]) == ("HostServiceError", "StartingHostServices")
    assert f"{EXPORTER} could not be started: it is failed" in status["message"]
    assert "nextRetryAt" in status
    assert host.systemd.states() == RUNNING | {EXPORTER: "failed"}
    assert host.node.instances == [BALANCED, BALANCED]
    assert host.node.clients_run
    assert not host.node.cordoned
    assert json.loads(host.copy.read_text())["services"] == [EXPORTER]
    host.node.cluster.wait_ready()
    pods = {pod["metadata"]["uid"] for pod in host.node.pods("gpu-operator").values()}
    host.systemd.units[EXPORTER].failures = 0
    host.node.wait(lambda: host.node.state == "success", "the retry")
    assert host.systemd.states() == RUNNING
    assert {pod["metadata"]["uid"] for pod in host.node.pods("gpu-operator").values()} == pods
    assert JOURNAL not in host.node.annotations
    assert not host.copy.exists()


def test_after_a_failed_rollback_a_unit_that_does_not_start_is_still_started_later(host: Host) -> None:
    host.node.terminate()
    host.node.start(MIG_MANAGER_RETRY_FIRST="1", MIG_MANAGER_RESOURCES_TIMEOUT="1.5")
    host.systemd.units[EXPORTER].failures = float("inf")
    host.node.cluster.gpus.fail("nvmlDeviceCreateGpuInstanceWithPlacement", NVML_ERROR_UNKNOWN, times=None)
    status = host.node.becomes("balanced", "failed")
    assert status["reason"] == "RollbackFailed"
    assert "nextRetryAt" in status
    host.node.cluster.gpus.clear_faults()
    host.node.cluster.gpus.record_calls()
    host.systemd.units[EXPORTER].failures = 0
    host.node.wait(lambda: "nextRetryAt" not in host.node.status, "the retry")
    assert host.systemd.states() == RUNNING
    assert host.node.status["reason"] == "RollbackFailed"
    assert host.node.cluster.gpus.calls(changes=True) == []


def test_a_list_that_cannot_be_used_is_found_before_the_cordon_and_read_anew(host: Host) -> None:
    host.node.terminate()
    host.clients.write_text("version: v1\nsystemd-services: [nvsm]\n")
    host.node.start(MIG_MANAGER_RETRY_FIRST="0.5")
    status = host.node.becomes("balanced", "failed")
    assert (status["reason"], status["phase"]) == ("HostServiceError", "Validating")
    assert f"{host.clients}:2: systemd-services[0]: found nvsm" in status["message"]
    assert not host.node.history.touched
    host.clients.write_text("version: v1\nsystemd-services: []\n")
    host.node.wait(lambda: host.node.state == "success", "the retry")
    assert host.systemd.requests == []


def test_a_host_without_a_bus_has_nothing_to_stop(host: Host, tmp_path: Path) -> None:
    host.node.terminate()
    host.node.start(HOST_ROOT_MOUNT=str(tmp_path))
    host.node.becomes("balanced")
    assert "no system bus" in host.node.logged()
    assert host.systemd.requests == []


def test_the_end_of_the_daemon_while_a_unit_hangs_puts_everything_back(host: Host) -> None:
    host.node.terminate()
    host.node.start(MIG_MANAGER_HOST_SERVICE_TIMEOUT="60")
    host.systemd.units[DCGM].stop_seconds = LONG
    host.node.label("balanced")
    host.node.eventually(lambda: host.systemd.units[DCGM].active == "deactivating")
    assert host.node.terminate() == 0, host.node.logged()[-2000:]
    assert (host.node.state, host.node.status["reason"]) == ("failed", "Interrupted")
    assert host.systemd.states() == RUNNING
    assert JOURNAL not in host.node.annotations
    assert not host.node.cordoned


def test_after_a_kill_the_next_start_goes_on_and_starts_what_was_stopped(host: Host) -> None:
    with amid_the_apply(host.node):
        host.node.kill()
    assert host.systemd.states() == RUNNING | {DCGM: "inactive", EXPORTER: "inactive"}
    host.node.start()
    host.node.wait(lambda: host.node.state == "success", "the next start to go on")
    assert host.systemd.states() == RUNNING
    assert host.node.instances == [BALANCED, BALANCED]
    assert JOURNAL not in host.node.annotations


@pytest.mark.parametrize("acts", [False, True], ids=["before", "after"])
def test_a_daemon_killed_at_any_request_to_systemd_puts_every_unit_back_at_its_next_start(
    host: Host, acts: bool
) -> None:
    for number, fatal in enumerate([*STOPS, *STARTS]):
        layout, placed = (("balanced", BALANCED), ("small", SMALL))[number % 2]
        kill_at(host, fatal, acts)
        host.node.label(layout)
        host.node.eventually(lambda: not host.node.runs, f"the kill at {fatal}")
        host.node.start()
        assert host.node.ended(layout)["state"] == "success", fatal
        host.node.wait(lambda: not host.node.cordoned, "the end of the cordon")
        assert host.systemd.states() == RUNNING, fatal
        assert host.node.instances == [placed, placed], fatal
        assert JOURNAL not in host.node.annotations, fatal
        assert not host.copy.exists(), fatal


def kill_at(host: Host, fatal: str, acts: bool) -> None:
    """Let the daemon be killed at its next such request, which has its effect or not."""

    def kill(request: str) -> bool:
        if request != fatal:
            return True
        host.systemd.before = lambda request: True
        host.node.kill()
        return acts

    host.systemd.before = kill


@pytest.mark.parametrize("gone", ["api server", "node"])
def test_where_nobody_can_tell_of_them_the_copy_on_the_host_does(
    host: Host, gone: str, tmp_path: Path
) -> None:
    node = host.node
    with amid_the_apply(node):
        node.kill()
    settings = {}
    before = node.cluster.node_object()
    if gone == "node":
        node.cluster.store.delete(NODES, None, node.cluster.node)
    else:
        text = node.cluster.kubeconfig.read_text()
        (tmp_path / "kubeconfig").write_text(text.replace(node.cluster.api.url, "http://127.0.0.1:9"))
        settings = {"KUBECONFIG": str(tmp_path / "kubeconfig")}
    node.start(**settings)
    node.eventually(lambda: host.systemd.states() == RUNNING, "the units")
    node.eventually(lambda: not host.copy.exists(), "the copy to go")
    assert node.terminate() == 0, node.logged()[-2000:]
    if gone == "node":
        meta = {key: value for key, value in before["metadata"].items() if key in ("name", "labels")}
        node.cluster.store.create(NODES, {"metadata": meta, "status": before["status"]})
