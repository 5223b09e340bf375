"""Units of the host, on a real message bus with a systemd whose jobs take time, fail and hang."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.systemd import InterruptedWaitError, connected, find_bus
from mig_manager.host.units import stop_order
from mig_manager.simulation.messagebus import MessageBus
from mig_manager.simulation.systemd import UnitFile
from tests.host.conftest import MakeSystemd

DCGM = "nvidia-dcgm.service"
EXPORTER = "dcgm-exporter.service"
MANY = 20.0
"""Seconds that nothing here takes."""


def order(address: str, *names: str) -> list[str]:
    with connected(address) as systemd:
        return [unit.name for unit in stop_order(systemd.unit, names)]


def test_a_stopped_unit_is_down_and_a_started_one_up_when_the_call_comes_back(
    bus: MessageBus, make_systemd: MakeSystemd
) -> None:
    host = make_systemd(UnitFile(DCGM, stop_seconds=0.2, start_seconds=0.2))
    with connected(bus.address) as systemd:
        systemd.stop(DCGM, MANY)
        assert host.units[DCGM].active == "inactive"
        systemd.start(DCGM, MANY)
        assert host.units[DCGM].active == "active"


@pytest.mark.parametrize(
    ("unit", "stops"),
    [
        (UnitFile(DCGM), [DCGM]),
        (UnitFile(DCGM, active="activating"), [DCGM]),  # a service that fails again and again, too
        (UnitFile(DCGM, active="reloading"), [DCGM]),
        (UnitFile(DCGM, active="deactivating"), [DCGM]),  # its end is waited for
        (UnitFile(DCGM, active="inactive"), []),
        (UnitFile(DCGM, active="failed"), []),
        (UnitFile(DCGM, active="inactive", load="masked"), []),
        (UnitFile("other.service"), []),
        (UnitFile("nv-hostengine.service", alias=DCGM), ["nv-hostengine.service"]),
    ],
    ids=lambda value: f"{value.active} {value.load}" if isinstance(value, UnitFile) else "",
)
def test_what_neither_runs_nor_is_about_to_is_nothing_to_do(
    bus: MessageBus, make_systemd: MakeSystemd, unit: UnitFile, stops: list[str]
) -> None:
    make_systemd(unit)
    assert order(bus.address, DCGM) == stops


def test_a_unit_that_waits_to_start_counts_as_running_and_one_that_waits_to_stop_does_not(
    bus: MessageBus, make_systemd: MakeSystemd
) -> None:
    host = make_systemd(
        UnitFile(DCGM, active="inactive", start_seconds=MANY), UnitFile(EXPORTER, stop_seconds=MANY)
    )
    host.begin(DCGM, "start")
    host.begin(EXPORTER, "stop")
    with connected(bus.address) as systemd:
        found = stop_order(systemd.unit, [DCGM, EXPORTER])
    assert [(unit.name, unit.wanted) for unit in found] == [(DCGM, True), (EXPORTER, False)]


def test_whoever_depends_on_a_unit_stops_before_it_although_nobody_listed_it(
    bus: MessageBus, make_systemd: MakeSystemd
) -> None:
    make_systemd(
        UnitFile(DCGM),
        UnitFile(EXPORTER, requires=(DCGM,)),
        UnitFile("agent.service", requires=(EXPORTER,)),
        UnitFile("idle.service", active="inactive", requires=(DCGM,)),
        UnitFile("nvsm.service"),
    )
    assert order(bus.address, "nvsm.service", DCGM) == ["nvsm.service", "agent.service", EXPORTER, DCGM]


@pytest.mark.parametrize(
    ("units", "words"),
    [
        ((UnitFile(DCGM, load="masked"),), "could not be started again: its unit file is masked"),
        ((UnitFile(DCGM, load="not-found"),), "could not be started again: its unit file is not-found"),
        ((UnitFile(DCGM, manual=False),), "could not be started again: it cannot be started by hand"),
        (
            (UnitFile(DCGM), UnitFile(EXPORTER, load="masked", requires=(DCGM,))),
            f"{EXPORTER} runs, and would stop with {DCGM}, but could not be started again",
        ),
        (
            (UnitFile(DCGM), UnitFile("kubelet.service", requires=(DCGM,))),
            f"kubelet.service depends on {DCGM} and would stop with it",
        ),
    ],
)
def test_what_could_not_be_put_back_is_refused_before_anything_stops(
    bus: MessageBus, make_systemd: MakeSystemd, units: tuple[UnitFile, ...], words: str
) -> None:
    host = make_systemd(*units)
    with pytest.raises(MigManagerError) as error:
        order(bus.address, DCGM)
    assert error.value.reason is Reason.HOST_SERVICE_ERROR
    assert words in error.value.message
    assert host.requests == []


def test_the_kubelet_stops_where_it_is_listed(bus: MessageBus, make_systemd: MakeSystemd) -> None:
    make_systemd(UnitFile(DCGM), UnitFile("kubelet.service", requires=(DCGM,)))
    assert order(bus.address, "kubelet.service", DCGM) == ["kubelet.service", DCGM]


@pytest.mark.parametrize(
    ("unit", "action", "timeout_s", "words"),
    [
        (
            UnitFile(DCGM, stop_seconds=MANY),
            "stop",
            0.3,
            "did not stop within 0.3 s: it is deactivating (deactivating)",
        ),
        (
            UnitFile(DCGM, active="inactive", start_seconds=MANY),
            "start",
            0.3,
            "did not start within 0.3 s: it is activating",
        ),
        (
            UnitFile(DCGM, active="inactive", failures=1),
            "start",
            MANY,
            "could not be started: it is failed (failed); the job ended as 'failed', result 'exit-code'",
        ),
        (
            UnitFile(DCGM, active="inactive", load="masked"),
            "start",
            MANY,
            "Unit nvidia-dcgm.service is masked (org.freedesktop.systemd1.UnitMasked)",
        ),
        (
            UnitFile(DCGM, socket="dcgm.socket", start_seconds=MANY),
            "stop",
            MANY,
            "dcgm.socket may have started it",
        ),
    ],
)
def test_a_failure_names_the_unit_and_has_the_words_of_systemd(
    bus: MessageBus, make_systemd: MakeSystemd, unit: UnitFile, action: str, timeout_s: float, words: str
) -> None:
    make_systemd(unit)
    with connected(bus.address) as systemd, pytest.raises(MigManagerError) as error:
        getattr(systemd, action)(DCGM, timeout_s)
    assert error.value.reason is Reason.HOST_SERVICE_ERROR
    assert DCGM in error.value.message
    assert words in error.value.message


def test_a_start_takes_the_place_of_a_stop_that_hangs(bus: MessageBus, make_systemd: MakeSystemd) -> None:
    host = make_systemd(UnitFile(DCGM, stop_seconds=MANY))
    with connected(bus.address) as systemd:
        with pytest.raises(MigManagerError):
            systemd.stop(DCGM, 0.1)
        systemd.start(DCGM, MANY)
    assert host.units[DCGM].active == "active"


def test_an_interrupt_ends_the_wait_and_not_the_job(bus: MessageBus, make_systemd: MakeSystemd) -> None:
    host = make_systemd(UnitFile(DCGM, stop_seconds=MANY))
    interrupted = threading.Event()
    timer = threading.Timer(0.1, interrupted.set)
    with connected(bus.address) as systemd:
        timer.start()
        with pytest.raises(InterruptedWaitError):
            systemd.stop(DCGM, MANY, interrupted)
    assert host.units[DCGM].active == "deactivating"


def test_the_bus_is_found_below_the_hosts_root(bus: MessageBus, host_root: Path, tmp_path: Path) -> None:
    assert find_bus(host_root) == bus.address
    assert find_bus(tmp_path) is None  # not the bus of the machine that this runs on


def test_a_systemd_that_does_not_answer_is_given_up(bus: MessageBus, make_systemd: MakeSystemd) -> None:
    host = make_systemd(UnitFile(DCGM))
    with connected(bus.address, answer_s=1.5) as systemd:
        host.silent = True
        with pytest.raises(MigManagerError, match=f"{DCGM}: no answer in time"):
            systemd.stop(DCGM, MANY)


def test_a_bus_without_systemd_is_told_at_once(bus: MessageBus) -> None:
    with pytest.raises(MigManagerError, match=r"org\.freedesktop\.systemd1") as error, connected(bus.address):
        pass
    assert error.value.reason is Reason.HOST_SERVICE_ERROR


@pytest.mark.parametrize("speaks", [False, True], ids=["never answers", "only lets in"])
def test_a_bus_that_hangs_is_given_up(host_root: Path, speaks: bool) -> None:
    ours, address = socket.socket(socket.AF_UNIX), str(host_root / "bus")
    ours.bind(address)
    ours.listen()

    def answer() -> None:
        theirs = ours.accept()[0]
        while speaks and (line := theirs.recv(1000)):
            if b"AUTH" in line:
                theirs.sendall(b"OK 1234\r\n")

    threading.Thread(target=answer, daemon=True).start()
    with (
        pytest.raises(MigManagerError, match="the system bus at"),
        connected(f"unix:path={address}", answer_s=0.3),
    ):
        pass
    ours.close()
