"""What we say and understand on the bus is what others do: python-dbusmock's systemd, and systemd itself.

The simulation goes through the same, so that it is wrong where they differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from mig_manager.host.systemd import connected
from mig_manager.host.units import stop_order
from mig_manager.simulation.messagebus import MessageBus
from mig_manager.simulation.systemd import SimulatedSystemd, UnitFile
from tests.host import others
from tests.requirements import need_dbus

UNITS = ("nvidia-dcgm.service", "dcgm-exporter.service")
Host = Callable[[Path, Sequence[str]], AbstractContextManager[str]]


@contextmanager
def simulated(root: Path, units: Sequence[str]) -> Iterator[str]:
    need_dbus()
    files = [UnitFile(name, active="inactive") for name in units]
    with MessageBus(root) as bus, SimulatedSystemd(bus.address, *files):
        yield bus.address


@pytest.mark.parametrize("host", [simulated, others.dbusmock, others.systemd], ids=lambda host: host.__name__)
def test_units_are_started_found_running_and_stopped(host: Host, host_root: Path) -> None:
    with host(host_root, UNITS) as address, connected(address) as systemd:
        assert stop_order(systemd.unit, UNITS) == ()
        for name in UNITS:
            systemd.start(name, 20)
        running = stop_order(systemd.unit, UNITS)
        assert [(unit.name, unit.active, unit.wanted) for unit in running] == [
            (name, "active", True) for name in UNITS
        ]
        systemd.stop(UNITS[0], 20)
        assert [unit.name for unit in stop_order(systemd.unit, UNITS)] == [UNITS[1]]


@pytest.mark.parametrize("host", [simulated, others.systemd], ids=lambda host: host.__name__)
def test_what_systemd_refuses_is_said_in_its_words(host: Host, host_root: Path) -> None:
    with host(host_root, UNITS) as address, connected(address) as systemd:
        absent = systemd.unit("absent.service")
        assert (absent.load, absent.active, absent.startable) == ("not-found", "inactive", False)
        with pytest.raises(Exception, match=r"Unit absent\.service not found \(org\.freedesktop\.systemd1\."):
            systemd.start("absent.service", 20)
        with pytest.raises(Exception, match=r"absent: Unit name absent is not valid"):
            systemd.unit("absent")
