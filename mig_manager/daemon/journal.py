"""The journal: what a run has changed on the Node and must put back, kept on the Node itself.

It is written in the same PATCH as the change that it records, so that a daemon that was killed at any
point finds the originals when it starts again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mig_manager.daemon.status import Reboot
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

JOURNAL_ANNOTATION = "mig-manager/journal"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Journal:
    """What must be put back."""

    started_at: str
    """RFC 3339: when the first pass of the run began."""
    cordoned: bool
    """Whether the cordon is ours: the node was schedulable before."""
    allocatable: Mapping[str, int]
    """The GPU resources that the node advertised before."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """How often the device plugin offered each device before, by resource name, as far as that could be told."""
    gpus: tuple[Mapping[str, Any], ...] = ()
    """Modes, instances, placements and compute instances before; one JSON object a GPU."""
    operands: Mapping[str, str] = field(default_factory=dict)
    """Deploy labels that we paused, with their values before."""
    persistence: tuple[str, ...] = ()
    """UUIDs of the GPUs whose persistence mode we switched off."""
    drm: bool = False
    """Whether the kernel module nvidia_drm may have been unloaded by us."""
    services: tuple[str, ...] = ()
    """Units of the host's systemd that run unless we stop them, in the order in which we do."""
    reboot: Reboot | None = None
    """The reboot that was asked for on the way."""

    def to_json(self) -> str:
        """The annotation's value."""
        return json.dumps(
            {
                "version": _VERSION,
                "startedAt": self.started_at,
                "cordoned": self.cordoned,
                "allocatable": dict(self.allocatable),
                "replicas": dict(self.replicas),
                "operands": dict(self.operands),
                "services": list(self.services),
                "gpus": list(self.gpus),
                "persistence": list(self.persistence),
                "drm": self.drm,
                "reboot": self.reboot and asdict(self.reboot),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_annotations(cls, annotations: Mapping[str, str]) -> Journal | None:
        """The journal of an unfinished run; None where there is none."""
        return cls.from_json(annotations.get(JOURNAL_ANNOTATION))

    @classmethod
    def from_json(cls, text: str | None) -> Journal | None:
        """A journal as written; None where there is none, or none that this version can read."""
        if not text:
            return None
        try:
            values = json.loads(text)
            return cls(
                started_at=str(values["startedAt"]),
                cordoned=bool(values["cordoned"]),
                allocatable=dict(values.get("allocatable", {})),
                replicas=dict(values.get("replicas", {})),
                gpus=tuple(values.get("gpus", ())),
                operands=dict(values.get("operands", {})),
                persistence=tuple(values.get("persistence", ())),
                drm=bool(values.get("drm")),
                services=tuple(map(str, values.get("services", ()))),
                reboot=Reboot.from_values(values.get("reboot")),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def before(self, now: Inventory) -> Inventory:
        """The GPUs as they were before the run; those that the journal does not know, as they are `now`.

        Raises:
            ValueError, KeyError, TypeError: the journal is not one that this version wrote.
        """
        known = {str(each["uuid"]): each for each in self.gpus}
        return replace(
            now,
            gpus=tuple(
                _state_before(state, known[state.gpu.uuid]) if state.gpu.uuid in known else state
                for state in now.gpus
            ),
        )

    def rest(self, inventory: Inventory | None, *, uncordon: bool) -> Journal | None:
        """What is still to be put back at the end of a run; None: nothing.

        `inventory`: the GPUs as they are then; None where nobody could read them.
        """
        if self.operands or (self.cordoned and not uncordon):
            return self
        if inventory is None:
            return self  # Nobody knows what an earlier process has left on the GPUs.
        if not self.services:
            return None
        # Pods may come back without them. The GPUs are done with, however they are now.
        return replace(self, cordoned=False, gpus=gpus_before(inventory))


def _state_before(now: GpuState, kept: Mapping[str, Any]) -> GpuState:
    instances = tuple(
        GpuInstance(
            id=None,
            profile=MigProfile.parse(each["profile"]),
            profile_id=each["id"],
            placement=Placement(each["start"], each["size"]),
            compute=tuple(
                ComputeInstance(None, slices, Placement(*place) if place else None)
                for slices, *place in each["compute"]
            ),
        )
        for each in kept["instances"]
    )
    return replace(now, mig_current=kept["current"], mig_pending=kept["pending"], instances=instances)


def gpus_before(inventory: Inventory) -> tuple[Mapping[str, Any], ...]:
    """What the journal keeps of each GPU: enough to build it again exactly."""
    return tuple(
        {
            "uuid": state.gpu.uuid,
            "current": state.mig_current,
            "pending": state.mig_pending,
            "instances": [
                {
                    "profile": str(instance.profile),
                    "id": instance.profile_id,
                    "start": instance.placement.start,
                    "size": instance.placement.size,
                    "compute": [
                        [one.slices, one.placement.start, one.placement.size]
                        if one.placement
                        else [one.slices]
                        for one in instance.compute
                    ],
                }
                for instance in state.instances
            ],
        }
        for state in inventory.gpus
        if state.gpu.mig_capable
    )
