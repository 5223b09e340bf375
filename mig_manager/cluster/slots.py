"""Fleet slots: at most so many nodes of a pool change at once.

A slot is a Lease with a fixed name (`mig-manager-slot-0` and so on), and whoever creates it has it: of two that
try, the API server lets one. While its node works, the Lease is renewed; afterwards it is deleted. Who finds no
free slot makes a Lease of another kind, a place in the queue, and the oldest place goes first.

A Lease that nobody has renewed for its duration, by the monotonic clock of the node that looks, may be given
away, but only if its Node says that nothing was begun there (it carries no journal), or is gone, or after a much
longer time. Whoever gives it away deletes the very version that he has looked at. So a holder that comes back
late finds it gone, and it looks twice: `confirm` before it begins, and `seal` once its Node carries the journal.
One of the two, the deletion or the seal, comes first at the API server, and the other fails.

Places are not renewed: that would be news for every node that waits. Instead the roll is called when a free slot
is not taken by those whose turn it is: all that live answer, and the others are passed over.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from loguru import logger

from mig_manager.cluster.client import METADATA, Api, object_path
from mig_manager.cluster.leases import Lease, LeaseClient, LeaseGoneError, Role, place_name, slot_name
from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.queue import Scene
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import WatchOptions
from mig_manager.errors import MigManagerError, Reason

_FIRST_LOOK_S = 60.0
_PARTING_S = 5.0
"""How long giving a slot back is tried; after that it expires."""


class SlotLostError(MigManagerError):
    """The slot may have been given to another node, or has been."""


@dataclass(frozen=True, slots=True)
class SlotRules:
    """The times of a pool, in seconds. All its nodes go by the same ones, as a rule."""

    lease_s: float = 60.0
    """A holder that has not renewed for so long is taken for dead."""
    abandoned_s: float = 7200.0
    """A slot whose holder died in the middle of its work is given away after so long without a renewal."""
    roll_call_s: float = 10.0
    """A free slot that is not taken for so long makes those who wait say that they live, and after twice as long
    those who have not said so are passed over."""
    journal: str = "mig-manager/journal"
    """The annotation that a Node carries while its holder's work on it must be put back."""

    @property
    def renew_s(self) -> float:
        """Between two renewals."""
        return self.lease_s / 4

    @property
    def grace_s(self) -> float:
        """After `confirm`, a change that is made within this time is made while the slot cannot be another's."""
        return self.lease_s / 3

    @property
    def look_s(self) -> float:
        """Between two looks while nothing happens."""
        return min(self.roll_call_s, self.lease_s) / 4


class Slots:
    """The slots of a pool, for one node. One at a time is held. `close` gives it back."""

    def __init__(
        self,
        api: Api,
        signal: Signal,
        node: NodeMeta,
        *,
        namespace: str,
        pool: str = "",
        limit: int,
        rules: SlotRules | None = None,
        watching: WatchOptions | None = None,
    ) -> None:
        """Prepare; nothing is sent yet. `limit`: how many slots the pool has; `pool` may be empty."""
        self._rules = rules or SlotRules()
        self._leases = LeaseClient(api, namespace, pool, node, self._rules.lease_s)
        self._api = api
        self._signal = signal
        self._watching = watching or WatchOptions()
        self._me = node.name
        self._names = tuple(slot_name(pool, number) for number in range(limit))
        self._held: _Held | None = None
        self._place: Lease | None = None
        self._not_before: dict[str, float] = {}
        self._stalled_since: float | None = None

    @property
    def held(self) -> bool:
        """Whether this node has a slot, as far as it knows."""
        return self._held is not None

    def take(self, deadline: Deadline, tell: Callable[[Scene], None]) -> bool:
        """Wait for a slot; False if there was none until the deadline (the place in the queue stays).

        `tell` is called before anything is tried, and again whenever that was in vain. A slot that an earlier
        process of this node holds is taken over. Raises ApiError, status 403 where Leases are not permitted.
        """
        if self._held is not None:
            return True
        with self._leases.watch(self._signal, self._watching) as watch:
            watch.wait_synced(Deadline.after(_FIRST_LOOK_S))

            def look() -> bool:
                scene = Scene.of(watch.objects.values(), self._me, self._names)
                tell(scene)
                try:
                    return self._step(scene)
                except ApiError as error:
                    if not error.passing:
                        raise
                    logger.debug("a step towards a slot failed, and is tried again: {}", error.message)
                    return False

            return bool(self._signal.wait(look, deadline, every=self._rules.look_s))

    def confirm(self) -> None:
        """Come back only if nobody else can have the slot now, or for a while. Without a slot it does nothing.

        Raises:
            SlotLostError: it cannot be shown to be ours.
        """
        if self._held is not None:
            self._held.confirm()

    def seal(self, deadline: Deadline) -> None:
        """Make sure, once the Node carries the journal, that the slot was not given away before that.

        From here on it is kept for this node, whatever happens to it. Without a slot it does nothing.

        Raises:
            SlotLostError: it was given away.
            ApiError: the API server did not answer until the deadline.
        """
        if self._held is not None:
            self._held.seal(deadline)

    def leave_queue(self) -> None:
        """Give up the place in the queue, if there is one."""
        place, self._place = self._place, None
        if place is not None:
            self._part_with(place)

    def close(self, *, keep: bool = False) -> None:
        """Give back the slot and the place in the queue. Never raises ApiError: what cannot be deleted expires.

        `keep`: the Node still carries the journal, so that the slot stays until somebody has put that right.
        """
        self.leave_queue()
        held, self._held = self._held, None
        if held is not None:
            held.stop()
            if not keep:
                self._part_with(held.lease)

    def clear(self) -> None:
        """Give back the slot that an earlier process of this node has left, if there is one. Never raises ApiError."""
        try:
            with self._leases.watch(self._signal, self._watching) as watch:
                watch.wait_synced(Deadline.after(_PARTING_S))
                slot = Scene.of(watch.objects.values(), self._me, self._names).own_slot
        except MigManagerError as error:
            logger.warning("a slot of this node may be left, and will expire: {}", error.message)
            return
        if slot is not None:
            self._part_with(slot)

    def _step(self, scene: Scene) -> bool:
        """One try at getting on. Whether we have a slot now."""
        now = time.monotonic()
        self._place = scene.own_place or self._place
        for each in scene.used:
            self._not_before.pop(each.name, None)
        if scene.own_slot is not None:
            return self._adopt(scene.own_slot)
        dead = self._silent(scene, now)
        choice = [name for name in scene.choice(dead) if now >= self._not_before.get(name, 0.0)]
        if choice:
            for each in dead:
                logger.info("{} waits for a slot before us but does not answer: passed over", each.node)
                self._leases.delete(each, unchanged=True)
            # Without a place many may come at the same moment, and each slot can be had by one of them only.
            return self._create(choice[0] if scene.own_place else random.choice(choice))
        if scene.own_place is None:
            self._queue_up(now)
        for each in scene.overdue(now, self._rules.lease_s):
            self._look_after(each, now)
        return False

    def _create(self, name: str) -> bool:
        began = time.monotonic()
        lease = self._leases.create(name, Role.SLOT)
        if lease is None:
            self._not_before[name] = began + self._rules.look_s  # The watch will show who has it.
            return False
        self._hold(lease, began)
        return True

    def _adopt(self, lease: Lease) -> bool:
        """Take over what an earlier process of this node, or an earlier try of ours, has got."""
        began = time.monotonic()
        try:
            self._leases.renew(lease)
        except LeaseGoneError:
            return False  # The watch will show that as well.
        self._hold(lease, began)
        return True

    def _hold(self, lease: Lease, renewed: float) -> None:
        logger.info("slot {} is ours", lease.name)
        self._held = _Held(self._leases, lease, self._rules, renewed)
        self.leave_queue()

    def _queue_up(self, now: float) -> None:
        name = place_name(self._me)
        if now < self._not_before.get(name, 0.0):
            return
        self._not_before[name] = now + self._rules.look_s
        place = self._leases.create(name, Role.PLACE)
        if place is None:
            self._leases.claim_place(name)
        self._place = place

    def _silent(self, scene: Scene, now: float) -> Collection[Lease]:
        """Who has to be taken for dead, since a slot is free, and they neither take it nor answer the roll call."""
        if not scene.stalled:
            self._stalled_since = None
            return ()
        if self._stalled_since is None:
            self._stalled_since = now
        patience, since = self._rules.roll_call_s, self._stalled_since
        own = scene.own_place
        if own is not None and now - since >= patience and now - own.since >= patience:
            try:
                self._leases.renew(own)
            except LeaseGoneError:
                return ()  # Somebody has passed over us; the watch will show it.
        if now - since < 2 * patience:
            return ()
        return [each for each in scene.ahead if now - each.since >= 2 * patience]

    def _look_after(self, lease: Lease, now: float) -> None:
        """Delete a slot whose holder does not renew it, if that may be."""
        if now < self._not_before.get(lease.uid, 0.0):
            return
        self._not_before[lease.uid] = now + self._rules.lease_s / 2
        abandoned = now - lease.since >= self._rules.abandoned_s
        if not abandoned and lease.node and self._may_have_begun(lease.node):
            return
        logger.warning("slot {} is taken from {}, which does not renew it", lease.name, lease.node)
        self._leases.delete(lease, unchanged=True)

    def _may_have_begun(self, name: str) -> bool:
        """Whether there is such a Node and it carries a journal, or may carry one that we must not see."""
        try:
            node = NodeMeta.from_json(self._api.get(object_path("nodes", name), accept=METADATA))
        except ApiError as error:
            if error.status not in (403, 404):
                raise
            return error.status == 403
        return self._rules.journal in node.annotations

    def _part_with(self, lease: Lease) -> None:
        try:
            self._leases.delete(lease, deadline=Deadline.after(_PARTING_S))
        except ApiError as error:
            logger.warning("Lease {} could not be deleted; it will expire: {}", lease.name, error.message)


class _Held:
    """A slot that we have, and the thread that renews it."""

    def __init__(self, leases: LeaseClient, lease: Lease, rules: SlotRules, renewed: float) -> None:
        self.lease = lease
        self._leases = leases
        self._rules = rules
        self._renewed = renewed
        """`time.monotonic()` before the last renewal that worked was sent."""
        self._sealed = False
        self._lost = False
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        threading.Thread(target=self._keep, name="slot", daemon=True).start()

    def stop(self) -> None:
        """Renew it no more."""
        self._stopping.set()

    def confirm(self) -> None:
        """See Slots."""
        if self._age() < self._rules.grace_s:
            return
        try:
            self._renew(Deadline.after(self._rules.renew_s))
        except ApiError as error:
            # Others keep a sealed slot for us much longer than its Lease lasts.
            if self._sealed and self._age() < self._rules.abandoned_s / 2:
                return
            raise SlotLostError(
                Reason.API_ERROR,
                f"The fleet slot {self.lease.name} could not be renewed for {self._age():.0f} s and may be another "
                f"node's: {error.message}",
            ) from error

    def seal(self, deadline: Deadline) -> None:
        """See Slots."""
        self._renew(deadline)
        self._sealed = True

    def _age(self) -> float:
        if self._lost:
            raise SlotLostError(
                Reason.API_ERROR, f"The fleet slot {self.lease.name} was taken away from this node."
            )
        return time.monotonic() - self._renewed

    def _renew(self, deadline: Deadline | None = None) -> None:
        with self._lock:
            began = time.monotonic()
            try:
                self._leases.renew(self.lease, deadline=deadline)
            except LeaseGoneError:
                self._lost = True
                self._age()
            self._renewed = began

    def _keep(self) -> None:
        pause = self._rules.renew_s
        while not self._stopping.wait(pause):
            pause = self._rules.renew_s
            try:
                self._renew()
            except SlotLostError as error:
                if not self._stopping.is_set():
                    logger.error("{}", error.message)
                return
            except ApiError as error:
                logger.warning("slot {} could not be renewed: {}", self.lease.name, error.message)
                pause /= 4
