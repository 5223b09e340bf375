"""What the Node said when a run began, as far as it concerns what is wished for now."""

from __future__ import annotations

from dataclasses import dataclass

from mig_manager.daemon.gpus import gpu_facts
from mig_manager.daemon.status import Granted, Reboot, State, Status
from mig_manager.daemon.wish import Wish
from mig_manager.errors import Reason
from mig_manager.planning.state import Inventory

USERS_IN_THE_WAY = frozenset({Reason.EVICTION_BLOCKED, Reason.DRAIN_TIMEOUT, Reason.GPU_IN_USE})
"""Failures after which a retry looks first, and that are not retried for ever: each attempt disturbs users."""
_LOOKS_FIRST = USERS_IN_THE_WAY | {Reason.DRAIN_REQUIRED}
_NOT_USABLE = frozenset({Reason.RESOURCES_NOT_ADVERTISED, Reason.DEVICE_NODE_ERROR, Reason.CDI_ERROR})


@dataclass(frozen=True, slots=True)
class Before:
    """The status of an earlier run, or of none. A wish without a hash is one that is not known yet."""

    status: Status | None = None
    gpus: str = ""
    """The GPUs as they were told then, as `gpu_facts` gives them; empty where they were not."""
    unfinished: bool = False
    """Whether that run left a journal: what the Node says of the GPUs may not be so."""

    def concerns(self, wish: Wish) -> bool:
        """Whether the status speaks of this very wish."""
        return self.status is not None and (self.status.layout, self.status.hash) == (wish.layout, wish.hash)

    def granted(self, wish: Wish) -> Granted | None:
        """What was last applied for the wish's label; None for nothing."""
        if self.status is None or self.status.layout != wish.layout:
            return None
        if self.status.granted is None and self.status.state is State.SUCCESS:  # As an older version says it.
            return Granted.of(self.status.hash, self.gpus)
        return self.status.granted

    def edited(self, wish: Wish) -> bool:
        """Whether only an edit of the layout asks for this run: what its label meant before had been applied."""
        if self.status is None or self.status.layout != wish.layout:
            return False
        granted = None if self.unfinished else self.granted(wish)
        return bool(self.status.edited) or (granted is not None and wish.hash not in (None, granted.hash))

    def as_granted(self, wish: Wish, inventory: Inventory) -> bool:
        """Whether the GPUs are still what they were when the layout was applied."""
        granted = self.granted(wish)
        return granted is not None and granted == Granted.of(granted.hash, gpu_facts(inventory))

    def lost_everything(self, wish: Wish, inventory: Inventory) -> bool:
        """Whether a reboot, or a reload of the driver, has taken all that had been applied for the label."""
        left = any(state.instances for state in inventory.gpus)
        return self.granted(wish) is not None and not left and not self.as_granted(wish, inventory)

    def success(self, inventory: Inventory) -> Wish | None:
        """The wish that the Node says is granted, if the GPUs are still what they were then."""
        said = self.status
        if said is None or said.state is not State.SUCCESS or self.gpus != gpu_facts(inventory):
            return None
        return Wish(said.layout, said.hash, origin=said.origin)

    def rollback_failed(self, wish: Wish) -> str | None:
        """The message of a RollbackFailed for this very wish, which is never tried again; None: it did not fail so."""
        failed = self.status if self.concerns(wish) else None
        return failed.message if failed is not None and failed.reason is Reason.ROLLBACK_FAILED else None

    def users_were_in_the_way(self, wish: Wish) -> bool:
        """Whether this very wish failed for the sake of somebody who uses the GPUs."""
        return self.concerns(wish) and self.status is not None and self.status.reason in _LOOKS_FIRST

    @property
    def not_usable(self) -> bool:
        """Whether the GPUs were right, but not within reach of pods."""
        return self.status is not None and self.status.reason in _NOT_USABLE

    @property
    def reboot(self) -> Reboot | None:
        """The last reboot that was asked for, whatever for; None for none."""
        return self.status.reboot if self.status is not None else None
