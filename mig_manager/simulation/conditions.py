"""The conditions in the status of objects."""

from __future__ import annotations

from collections.abc import Mapping

from mig_manager.simulation.objects import Object
from mig_manager.simulation.recorder import timestamp


def with_conditions(old: list[Object], now: Mapping[str, tuple[bool, str]]) -> list[Object]:
    """A status's conditions with those in `now` set: whether each holds, and the reason if it does not."""
    held = {each["type"]: each for each in old}
    for kind, (holds, reason) in now.items():
        before = held.get(kind)
        value = "True" if holds else "False"
        since = before["lastTransitionTime"] if before and before["status"] == value else timestamp()
        held[kind] = {"type": kind, "status": value, "lastProbeTime": None, "lastTransitionTime": since}
        if reason and not holds:
            held[kind]["reason"] = reason
    return list(held.values())
