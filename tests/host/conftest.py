from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mig_manager.simulation.messagebus import MessageBus
from mig_manager.simulation.systemd import SimulatedSystemd, UnitFile
from tests.requirements import need_dbus

MakeSystemd = Callable[..., SimulatedSystemd]


@pytest.fixture
def host_root() -> Iterator[Path]:
    """A short path: the address of a unix socket takes 108 bytes."""
    with tempfile.TemporaryDirectory(prefix="mig-") as directory:
        yield Path(directory)


@pytest.fixture
def bus(host_root: Path) -> Iterator[MessageBus]:
    need_dbus()
    with MessageBus(host_root) as running:
        yield running


@pytest.fixture
def make_systemd(bus: MessageBus) -> Iterator[MakeSystemd]:
    """Runs the systemd of that host, with these units."""
    with ExitStack() as stack:

        def make(*units: UnitFile) -> SimulatedSystemd:
            return stack.enter_context(SimulatedSystemd(bus.address, *units))

        yield make
