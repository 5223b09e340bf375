"""What systemd says of a unit, and what has to stop so that it does not run."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mig_manager.errors import MigManagerError, Reason

_RUNNING = frozenset({"active", "reloading", "refreshing", "activating", "maintenance"})
_DOWN = frozenset({"inactive", "failed"})
_STARTS = frozenset({"start", "restart", "try-restart", "reload-or-start"})
_CARRIES_PODS = re.compile(
    r"(?:snap\..*)?(?:kubelet|containerd|crio?|docker|k3s|rke2|k0s|microk8s)[A-Za-z0-9._-]*\.service"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit as it is at one moment. States are systemd's own words (org.freedesktop.systemd1)."""

    name: str
    """Its own, whatever alias it was asked for by."""
    load: str = "loaded"
    """LoadState: `loaded`, `not-found`, `masked`, `bad-setting`, `error`."""
    active: str = "inactive"
    """ActiveState."""
    sub: str = ""
    """SubState, which says more."""
    job: str = ""
    """The type of the job that is queued or under way for it, such as `start`; empty: none."""
    stoppable: bool = True
    startable: bool = True
    """Whether it may be started by hand, and could be found again once it is stopped."""
    dependents: tuple[str, ...] = ()
    """Units that systemd stops with it."""
    triggers: tuple[str, ...] = ()
    """Units that start it when something happens, such as sockets."""

    @property
    def down(self) -> bool:
        """Whether it neither runs nor is about to."""
        return self.active in _DOWN and self.job not in _STARTS

    @property
    def wanted(self) -> bool:
        """Whether it runs or is about to, so that whoever stops it has to start it again."""
        return self.job in _STARTS or (self.active in _RUNNING and self.job != "stop")

    @property
    def state(self) -> str:
        """In words."""
        return f"{self.active} ({self.sub})" if self.sub else self.active


def stop_order(look: Callable[[str], Unit], names: Sequence[str]) -> tuple[Unit, ...]:
    """The units that have to stop so that none of these runs: whoever depends on one comes before it.

    Those that are down are left out. Started in the reverse order, they are as they were.

    Raises:
        MigManagerError: HostServiceError; one of them cannot be stopped, or not be started again afterwards, or
            what runs the pods would stop with it.
    """
    listed = tuple(look(name) for name in names)
    named = {unit.name for unit in listed}
    order: dict[str, Unit] = {}
    seen: set[str] = set()

    def add(unit: Unit, because: str) -> None:
        if unit.name in seen:
            return
        seen.add(unit.name)
        if unit.down:
            return
        _check(unit, unit.name in named, because)
        for dependent in unit.dependents:
            add(look(dependent), unit.name)
        order[unit.name] = unit

    for unit in listed:
        add(unit, "")
    return tuple(order.values())


def _check(unit: Unit, listed: bool, because: str) -> None:
    """Raises MigManagerError where that unit must not or cannot be stopped."""
    with_it = "" if listed else f", and would stop with {because}"
    if not listed and _CARRIES_PODS.fullmatch(unit.name):
        problem = f"depends on {because} and would stop with it; it is stopped only where it is listed itself"
    elif not unit.wanted:
        return
    elif not unit.startable:
        why = f"its unit file is {unit.load}" if unit.load != "loaded" else "it cannot be started by hand"
        problem = f"runs{with_it}, but could not be started again: {why}"
    elif listed and not unit.stoppable:
        problem = "runs, and refuses to be stopped by hand"
    else:
        return
    raise MigManagerError(Reason.HOST_SERVICE_ERROR, f"{unit.name} {problem}. Nothing was stopped.")
