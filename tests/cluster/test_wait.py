"""Waits end by news, by the deadline, or by an interrupt, and by nothing else."""

from __future__ import annotations

import os
import signal as signals
import threading
import time

import pytest

from mig_manager.cluster.wait import Deadline, Signal, WaitTimeoutError
from mig_manager.errors import Reason

HANGS_S = 60.0
"""A wait that nothing ends; half of it is more than any machine needs."""


class StoppedError(Exception):
    pass


def test_a_value_that_is_there_already_is_taken_even_past_the_deadline() -> None:
    assert Signal().wait(lambda: "here", Deadline.after(0)) == "here"


@pytest.mark.parametrize(
    ("value", "ends"), [(None, False), (False, False), (0, True), ("", True), (True, True)]
)
def test_only_none_and_false_go_on_waiting(value: object, ends: bool) -> None:
    signal = Signal()
    found = signal.wait(lambda: value, Deadline.after(0.01))
    assert (found is not None) == ends


def test_a_timeout_carries_reason_and_words() -> None:
    with pytest.raises(WaitTimeoutError, match="pod a/b is still there") as caught:
        Signal().wait_for(
            lambda: None, Deadline.after(0), lambda: "pod a/b is still there", reason=Reason.DRAIN_TIMEOUT
        )
    assert caught.value.reason is Reason.DRAIN_TIMEOUT


def test_it_looks_only_when_notified() -> None:
    signal = Signal()
    looks: list[int] = []
    before: list[int] = []

    def notify() -> None:
        before.append(len(looks))
        signal.notify()

    def look() -> bool:
        looks.append(len(looks))
        if len(looks) == 1:
            threading.Timer(0.1, notify).start()
        return len(looks) == 2

    assert signal.wait(look, Deadline.after(HANGS_S))
    assert before == [1]
    looks.clear()
    assert signal.wait(lambda: looks.append(0), Deadline.after(0.1)) is None
    assert len(looks) == 2  # at the start, at the deadline


def test_it_looks_every_so_often_for_what_nobody_notifies_of() -> None:
    looks = iter([None, None, "there"])
    assert Signal().wait(lambda: next(looks), Deadline.after(10), every=0.01) == "there"


def test_every_waiting_thread_gets_every_notification() -> None:
    signal = Signal()
    ready, reached = threading.Barrier(5), threading.Event()
    found: list[bool | None] = []

    def wait() -> None:
        ready.wait()
        found.append(signal.wait(lambda: reached.is_set() or None, Deadline.after(HANGS_S)))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait()
    reached.set()
    signal.notify()
    for thread in threads:
        thread.join(HANGS_S / 2)
    assert found == [True] * 4


def test_a_notification_between_look_and_wait_is_not_lost() -> None:
    signal = Signal()
    state = [False]

    def look() -> bool:
        seen = state[0]
        if not seen:  # the change comes right after the look
            state[0] = True
            signal.notify()
        return seen

    began = time.monotonic()
    assert signal.wait(look, Deadline.after(HANGS_S))
    assert time.monotonic() - began < HANGS_S / 2


def test_what_the_interrupt_raises_ends_any_wait_at_once() -> None:
    stop = threading.Event()

    def interrupt() -> None:
        if stop.is_set():
            raise StoppedError

    signal = Signal(interrupt)

    def change() -> None:
        stop.set()
        signal.notify()

    threading.Timer(0.05, change).start()
    began = time.monotonic()
    with pytest.raises(StoppedError):
        signal.pause(HANGS_S)
    assert time.monotonic() - began < HANGS_S / 2


def test_a_signal_handler_may_notify() -> None:
    signal = Signal()
    arrived = threading.Event()

    def handle(number: int, frame: object) -> None:
        arrived.set()
        signal.notify()

    before = signals.signal(signals.SIGUSR1, handle)
    try:
        threading.Timer(0.05, os.kill, (os.getpid(), signals.SIGUSR1)).start()
        began = time.monotonic()
        assert signal.wait(lambda: arrived.is_set() or None, Deadline.after(HANGS_S))
        assert time.monotonic() - began < HANGS_S / 2
    finally:
        signals.signal(signals.SIGUSR1, before)
