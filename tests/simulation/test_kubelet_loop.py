from __future__ import annotations

import threading
import time

import pytest

from mig_manager.simulation.loop import Loop, Wake


def test_actions_run_in_order_and_timers_when_due() -> None:
    loop, ran, done = Loop("test"), list[str](), threading.Event()

    def set_timers() -> None:
        loop.after(0.06, lambda: ran.append("late"))
        loop.after(0.08, done.set)
        loop.after(0.03, lambda: ran.append("early"))
        loop.after(0.01, lambda: ran.append("cancelled")).cancel()

    loop.post(lambda: ran.append("first"))
    loop.post(lambda: ran.append("second"))
    loop.post(set_timers)
    loop.start()
    assert done.wait(60)
    loop.close()
    assert ran == ["first", "second", "early", "late"]


def test_a_call_returns_or_raises_in_the_caller() -> None:
    loop = Loop("test")
    loop.start()
    assert loop.call(lambda: threading.current_thread().name) == "test"
    assert loop.call(lambda: loop.call(lambda: 1)) == 1
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 // 0)
    loop.close()


def test_an_action_that_raises_stops_no_other_and_shows_when_the_loop_closes() -> None:
    loop = Loop("test")
    loop.start()
    loop.post(lambda: [][0])
    assert loop.call(lambda: "still here") == "still here"
    with pytest.raises(ExceptionGroup, match="errors in test") as raised:
        loop.close()
    assert isinstance(raised.value.exceptions[0], IndexError)


def test_closing_drops_what_is_still_to_come() -> None:
    loop, ran = Loop("test"), list[int]()
    loop.start()
    loop.after(60, lambda: ran.append(1))
    began = time.monotonic()
    loop.close()
    assert time.monotonic() - began < 60
    assert ran == []


def test_a_wake_runs_once_for_many_calls() -> None:
    loop, ran = Loop("test"), list[int]()
    wake = Wake(loop, lambda: ran.append(1), delay=0.05)

    def ask() -> None:
        for _ in range(5):
            wake()

    def ask_and_wait() -> None:
        loop.call(ask)
        done = threading.Event()
        loop.after(0.1, done.set)
        assert done.wait(60)

    loop.start()
    ask_and_wait()
    assert ran == [1]
    ask_and_wait()
    loop.close()
    assert ran == [1, 1]
