"""Whose turn it is: what the Leases of a pool mean for one node that wants a slot. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from mig_manager.cluster.leases import Lease, Role

_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class Scene:
    """The pool as one node sees it."""

    limit: int
    used: tuple[Lease, ...]
    """The slots in use; also those that a higher limit allowed."""
    free: tuple[str, ...]
    """Names of the slots that may be taken, no more than the limit leaves room for."""
    ahead: tuple[Lease, ...]
    """Places before ours in the queue, the oldest first; without a place of ours, all."""
    own_slot: Lease | None
    own_place: Lease | None

    @classmethod
    def of(cls, leases: Iterable[Lease], node: str, names: Sequence[str]) -> Scene:
        """What `node` sees of a pool whose slots have those names, in the order in which they are taken."""
        known = list(leases)
        used = tuple(sorted((each for each in known if each.role == Role.SLOT), key=lambda each: each.name))
        taken, at_work = {each.name for each in used}, {each.node for each in used}
        free = [name for name in names if name not in taken]
        places = (each for each in known if each.role == Role.PLACE)
        queue = sorted(
            (each for each in places if each.node == node or each.node not in at_work),
            key=lambda each: (each.created, each.name),
        )
        own_place = next((each for each in queue if each.node == node), None)
        return cls(
            limit=len(names),
            used=used,
            free=tuple(free[: max(0, len(names) - len(used))]),
            ahead=tuple(queue if own_place is None else queue[: queue.index(own_place)]),
            own_slot=next((each for each in used if each.node == node), None),
            own_place=own_place,
        )

    def choice(self, dead: Collection[Lease] = ()) -> tuple[str, ...]:
        """The free slots that are left when all before us, but for the `dead`, have taken theirs; ours is the first."""
        return self.free[sum(each not in dead for each in self.ahead) :]

    @property
    def stalled(self) -> bool:
        """Whether there is a free slot, and it is for others to take it."""
        return bool(self.free) and not self.choice()

    def overdue(self, now: float, after_s: float) -> tuple[Lease, ...]:
        """Slots whose holders have not renewed them for so long, as far as it is for us to look after them."""
        found = tuple(each for each in self.used if now - each.since >= max(after_s, each.duration_s))
        return found if len(self.ahead) < len(self.free) + len(found) else ()

    def __str__(self) -> str:
        """`2 of 2 in use by gpu-3, gpu-7; 4 nodes are ahead`."""
        names = sorted(each.node or "?" for each in self.used)
        if len(names) > _MOST_NAMED:
            names[_MOST_NAMED:] = [f"{len(names) - _MOST_NAMED} more"]
        words = f"{len(self.used)} of {self.limit} in use"
        if names:
            words += f" by {', '.join(names)}"
        if self.ahead:
            words += f"; {len(self.ahead)} {'node is' if len(self.ahead) == 1 else 'nodes are'} ahead"
        return words
