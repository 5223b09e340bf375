"""Getting pods off the GPUs, so that nobody loses more than has to be.

Nothing is evicted before a dry run has shown that every eviction would be accepted. A PodDisruptionBudget
that refuses is asked again until the deadline, and named if it still refuses then.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from loguru import logger

from mig_manager.cluster.client import Api
from mig_manager.cluster.drainrules import DrainMode, DrainOptions, keep_coming, refuse_if_off
from mig_manager.cluster.eviction import Refusal, delete, evict
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.pods import name_pods, stays
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.errors import MigManagerError, Reason

_MANY = 3
"""Pods that came while others were drained: somebody sends them again and again."""


@dataclass(frozen=True, slots=True)
class DrainReport:
    """What a drain did."""

    gone: tuple[Pod, ...]
    """Pods that were in the way and are gone."""
    released: tuple[Pod, ...]
    """Pods that were in the way, do not end, and hold nothing any more."""
    left: tuple[Pod, ...]
    """DaemonSet and mirror pods that are still in the way: no drain touches them."""


def _not_released(pod: Pod) -> bool:
    """Nothing is known of the devices of a pod that does not end."""
    return False


def drain(
    api: Api,
    pods: ObjectWatch[Pod],
    victims: Callable[[], Sequence[Pod]],
    options: DrainOptions,
    signal: Signal,
    *,
    hindered: Callable[[str], None] = lambda obstacle: None,
    evicted: Callable[[Pod], None] = lambda pod: None,
    released: Callable[[Pod], bool] = _not_released,
    answered: Callable[[bool], None] = lambda goes: None,
) -> DrainReport:
    """Make the pods go that are in the way, and come back when they are gone.

    `victims` gives the pods that are in the way now; it is asked again whenever the pods of the node change,
    so pods that appear meanwhile are drained too. A pod is gone when `pods` has no object with its uid.
    `hindered` is told in words, once each, what an eviction has to wait for; `evicted`, in other threads, which pods
    were made to go. `released` is asked about a pod that was told to end and is still there when its time is over:
    whether it holds no device any more, so that only the API still shows it. `answered` is told, in other threads,
    of each pod that is told to go (True), and of each refusal (False), dry runs included.

    Raises MigManagerError: EvictionBlocked (nothing, or not all, could be evicted before the deadline: names
    pods and PodDisruptionBudgets), DrainTimeout (pods did not end in time), DrainRequired (mode off); and
    whatever the signal's interrupt hook raises.
    """
    if options.mode is DrainMode.OFF:
        refuse_if_off(victims(), options)
        return DrainReport((), (), tuple(victims()))
    pool = ThreadPoolExecutor(options.parallel, thread_name_prefix="drain")
    try:
        return _Drain(api, pods, victims, options, signal, pool, hindered, evicted, released, answered).run()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


@dataclass(slots=True)
class _Case:
    """One pod that has to go, and how far we are with it."""

    pod: Pod
    passed: float | None = None
    """When a dry run was accepted."""
    late: bool = False
    """Whether it came while others were drained already."""
    gone_by: float | None = None
    """Set once the pod is ending: when it must be gone."""
    attempt: Future[Refusal | None] | None = None
    next_try: float = 0.0
    failures: int = 0
    obstacle: str = ""
    """Why it could not be evicted so far, in words."""


class _Drain:
    def __init__(
        self,
        api: Api,
        pods: ObjectWatch[Pod],
        victims: Callable[[], Sequence[Pod]],
        options: DrainOptions,
        signal: Signal,
        pool: ThreadPoolExecutor,
        hindered: Callable[[str], None],
        evicted: Callable[[Pod], None],
        released: Callable[[Pod], bool],
        answered: Callable[[bool], None],
    ) -> None:
        self._api = api
        self._pods = pods
        self._victims = victims
        self._options = options
        self._signal = signal
        self._pool = pool
        self._hindered = hindered
        self._evicted = evicted
        self._released = released
        self._answered = answered
        self._set_aside: set[str] = set()
        """Uids of pods that hold nothing any more, and do not end."""
        self._began = time.monotonic()
        self._longest_grace = 0
        self._looked = False
        self._late = 0
        """How many pods have come since the first look."""
        self._rehearsing = True
        self._cases: dict[str, _Case] = {}
        self._gone: list[Pod] = []
        self._left: tuple[Pod, ...] = ()

    def run(self) -> DrainReport:
        """Look, act, and wait for news, until nobody is in the way."""
        while True:
            seen = self._look()
            if not self._cases:
                present = self._pods.objects
                endless = [pod for pod in self._gone if pod.uid in self._set_aside and pod.uid in present]
                gone = [pod for pod in self._gone if pod not in endless]
                return DrainReport(tuple(gone), tuple(endless), self._left)
            self._collect()
            if self._options.mode is not DrainMode.WAIT:
                self._act()
            self._give_up_in_time()
            self._signal.wait(partial(self._news, seen), Deadline(self._next_moment()))

    def _look(self) -> frozenset[str]:
        """Bring the cases up to date with the pods; gives the uids of all that there are."""
        victims = [pod for pod in self._victims() if pod.uid not in self._set_aside]
        present = self._pods.objects
        self._left = tuple(pod for pod in victims if stays(pod))
        for pod in victims:
            if not stays(pod) and pod.uid not in self._cases:
                self._cases[pod.uid] = _Case(pod, late=self._looked)
                self._late += self._looked
                self._longest_grace = max(self._longest_grace, self._grace_of(pod))
        self._looked = True
        in_the_way = {pod.uid for pod in victims}
        for uid, case in list(self._cases.items()):
            case.pod = present.get(uid, case.pod)
            ended = uid not in in_the_way and case.gone_by is None
            if uid not in present or uid in self._set_aside or ended:
                del self._cases[uid]
                self._gone.append(case.pod)
            elif case.pod.deleted is not None and case.gone_by is None:
                self._ending(case)
        return frozenset(present) | in_the_way

    def _collect(self) -> None:
        """Draw the conclusions from the answers that have arrived."""
        for case in self._cases.values():
            if case.attempt is None or not case.attempt.done():
                continue
            refusal = case.attempt.result()
            case.attempt = None
            if case.gone_by is not None:
                continue
            if refusal is not None:
                self._refused(case, refusal)
            elif self._rehearsing:
                case.passed, case.obstacle = time.monotonic(), ""
            else:
                self._ending(case)

    def _refused(self, case: _Case, refusal: Refusal) -> None:
        self._held_up(case, refusal.obstacle)
        case.passed = None
        case.failures += refusal.failure
        if refusal.final or case.failures >= self._options.failures:
            raise self._blocked("refused for good")
        pause_s = refusal.pause_s or self._options.retry_s
        case.next_try = time.monotonic() + pause_s * random.uniform(1.0, 1.2)

    def _held_up(self, case: _Case, obstacle: str) -> None:
        """Note what a pod has to wait for, and tell it if it is news."""
        if obstacle != case.obstacle:
            words = f"Pod {case.pod} cannot be evicted yet: {obstacle}"
            logger.info("{}", words)
            self._hindered(words)
        case.obstacle = obstacle

    def _act(self) -> None:
        """Send what is due: dry runs first, and evictions once all of those were accepted."""
        now = time.monotonic()
        waiting = [case for case in self._cases.values() if case.gone_by is None]
        for case in waiting:
            if held_back := self._options.held_back(case.pod):
                self._held_up(case, held_back)
            elif self._options.mode is DrainMode.DELETE:
                case.passed = now
        if self._rehearsing:
            recently = now - 2 * self._options.retry_s
            for case in waiting:
                if case.passed is not None and case.passed < recently:
                    case.passed = None
            self._rehearsing = not all(case.passed is not None for case in waiting)
        for case in waiting:
            settled = self._rehearsing and case.passed is not None
            free = not settled and not self._options.held_back(case.pod)
            if case.attempt is None and case.next_try <= now and free:
                case.attempt = self._pool.submit(self._send, case.pod, rehearsal=self._rehearsing)
                case.attempt.add_done_callback(lambda _: self._signal.notify())

    def _send(self, pod: Pod, *, rehearsal: bool) -> Refusal | None:
        if self._options.mode is DrainMode.DELETE:
            refusal = delete(self._api, pod, grace_s=self._options.grace_s)
        else:
            refusal = evict(self._api, pod, grace_s=self._options.grace_s, rehearsal=rehearsal)
        if refusal is not None or not rehearsal:
            self._answered(refusal is None)
        if refusal is None and not rehearsal:
            self._evicted(pod)
        return refusal

    def _give_up_in_time(self) -> None:
        now = time.monotonic()
        cases = self._cases.values()
        stuck = [case for case in cases if case.gone_by is not None and case.gone_by <= now]
        stuck = [case for case in stuck if not self._let_be(case.pod)]
        if stuck:
            self._refuse_endless(stuck)
            raise MigManagerError(Reason.DRAIN_TIMEOUT, self._stuck_in_words([case.pod for case in stuck]))
        if now < self._limit or all(case.gone_by is not None for case in cases):
            return
        if self._options.mode is DrainMode.WAIT:
            running = name_pods(case.pod for case in cases)
            raise MigManagerError(
                Reason.DRAIN_TIMEOUT,
                f"These pods were still running after {now - self._began:.0f} s: {running}.",
            )
        self._refuse_endless([case for case in cases if case.gone_by is None])
        raise self._blocked(f"refused for {now - self._began:.0f} s")

    def _refuse_endless(self, left: Sequence[_Case]) -> None:
        """Raise DrainTimeout where nobody is left but pods that came meanwhile, and many have."""
        spent = time.monotonic() - self._began
        if self._late >= _MANY and all(case.late and not case.obstacle for case in left):
            raise keep_coming([case.pod for case in left], f"{self._late} in {spent:.1f} s")

    def _let_be(self, pod: Pod) -> bool:
        """Go on without a pod that does not end, if it holds nothing any more."""
        if pod.uid not in self._set_aside and self._released(pod):
            logger.warning("pod {} does not end, but holds no GPU any more: going on without it", pod)
            self._set_aside.add(pod.uid)
        return pod.uid in self._set_aside

    def _blocked(self, how: str) -> MigManagerError:
        """The error that names every pod that could not be evicted, and why."""
        cases = sorted(
            (case for case in self._cases.values() if case.gone_by is None and case.obstacle),
            key=lambda case: str(case.pod),
        )
        reasons = "; ".join(f"pod {case.pod}: {case.obstacle}" for case in cases[:5])
        more = f"; and {len(cases) - 5} more" if len(cases) > 5 else ""
        ends = (
            "Nothing was evicted." if self._rehearsing else "",
            self._options.remedy(c.pod for c in cases),
        )
        return MigManagerError(
            Reason.EVICTION_BLOCKED,
            " ".join((f"Evictions were {how}: {reasons or 'no answer'}{more}.", *filter(None, ends))),
        )

    def _stuck_in_words(self, stuck: Sequence[Pod]) -> str:
        words = f"These pods were told to end and are still there: {name_pods(stuck)}"
        finalizers = sorted({name for pod in stuck for name in pod.finalizers})
        if finalizers:
            words += f" (held by finalizers {', '.join(finalizers)})"
        if self._pods.problem is not None:
            words += f" (as far as is known: {self._pods.problem})"
        return words + "."

    def _ending(self, case: _Case) -> None:
        """The pod has been told to end, by us or by someone else."""
        grace = self._grace_of(case.pod) if case.pod.deleted is None else case.pod.grace_s
        case.gone_by = min(
            time.monotonic() + grace + self._options.margin_s, self._began + self._options.cap_s
        )

    def _grace_of(self, pod: Pod) -> int:
        return pod.grace_s if self._options.grace_s is None else self._options.grace_s

    @property
    def _limit(self) -> float:
        """Until when evictions may be refused."""
        options = self._options
        return self._began + min(
            options.cap_s, max(options.timeout_s, self._longest_grace + options.margin_s)
        )

    def _news(self, seen: frozenset[str]) -> bool:
        """Whether there is anything to do before the next moment that was planned."""
        if any(case.attempt is not None and case.attempt.done() for case in self._cases.values()):
            return True
        present = self._pods.objects
        return seen != frozenset(present) | {pod.uid for pod in self._victims()} or any(
            uid in present and present[uid] is not case.pod for uid, case in self._cases.items()
        )

    def _next_moment(self) -> float:
        """When something is due even if nothing changes."""
        moments: list[float] = []
        for case in self._cases.values():
            if case.gone_by is not None:
                moments.append(case.gone_by)
                continue
            moments.append(self._limit)
            if case.attempt is None and case.next_try > time.monotonic():
                moments.append(case.next_try)
        return min(moments)
