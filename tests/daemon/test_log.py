"""What the daemon writes to its log, line by line."""

from __future__ import annotations

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from loguru import logger

from mig_manager.daemon.folding import Folding
from mig_manager.daemon.log import lines_of_run, run_id, set_up_logging
from mig_manager.daemon.settings import Settings

TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IjEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"
SetUp = Callable[..., io.StringIO]


class _Stream(io.StringIO):
    def __init__(self, encoding: str) -> None:
        super().__init__()
        self._encoding = encoding

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._encoding


@pytest.fixture
def set_up() -> Iterator[SetUp]:
    """Sets logging up as the daemon does, onto a stream; undone afterwards."""
    root, hooks = logging.getLogger(), (sys.excepthook, threading.excepthook)
    handlers, level = root.handlers[:], root.level

    def begin(*, encoding: str = "utf-8", window_s: float = 300.0, **settings: str) -> io.StringIO:
        stream = _Stream(encoding)
        set_up_logging(Settings(node_name="gpu-1", **settings), stream, window_s=window_s)  # type: ignore[arg-type]
        return stream

    yield begin
    logger.remove()
    logger.add(sys.stderr)
    logging.captureWarnings(False)
    root.handlers[:], (sys.excepthook, threading.excepthook) = handlers, hooks
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    """The lines, each of which has to be one JSON object."""
    return [json.loads(line) for line in stream.getvalue().split("\n") if line]


def test_a_json_line_has_stable_keys_and_the_run_in_every_thread(set_up: SetUp) -> None:
    stream = set_up(log_format="json")
    logger.info("before")
    phases = ["Validating"]
    with lines_of_run("3f2a91c0", lambda: phases[0]):
        logger.info("during")
        phases[0] = "Draining"
        thread = threading.Thread(target=lambda: logger.warning("elsewhere"))
        thread.start()
        thread.join()
    logger.info("after")
    before, during, elsewhere, after = lines(stream)
    assert set(before) == set(after) == {"time", "level", "message", "node"}
    assert (during["run"], during["phase"]) == ("3f2a91c0", "Validating")
    assert (elsewhere["run"], elsewhere["phase"], elsewhere["level"]) == ("3f2a91c0", "Draining", "WARNING")
    assert before["node"] == "gpu-1"


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_odd_characters_and_tracebacks_stay_in_one_line(set_up: SetUp, encoding: str) -> None:
    stream = set_up(log_format="json", encoding=encoding)
    odd = 'a "quote", {braces} <red>, \\, \n\r\t\x00\x1b[31m \u2028\u2029 é … 🐍 \udc80'
    logger.info("{}", odd)
    try:
        raise ValueError(f"Bearer {TOKEN}\nsecond line")
    except ValueError:
        logger.exception("unexpected error")
    written = stream.getvalue()
    assert len(written.splitlines()) == 2
    written.encode(encoding)
    first, second = lines(stream)
    assert first["message"] == odd
    assert second["exception"].startswith("Traceback")
    assert TOKEN not in written


def test_text_lines_are_for_people_and_no_message_can_fake_one(set_up: SetUp) -> None:
    stream = set_up(log_format="text")
    with lines_of_run("3f2a91c0", lambda: "Draining"):
        logger.info("pod x\n2026-01-01 00:00:00.000 ERROR   fake \x1b[2J")
    (line,) = stream.getvalue().splitlines()
    assert line.endswith(r" INFO    [3f2a91c0] pod x\n2026-01-01 00:00:00.000 ERROR   fake \x1b[2J")


def test_what_libraries_and_dying_threads_say_goes_the_same_way(set_up: SetUp) -> None:
    stream = set_up(log_format="json", log_level="DEBUG")
    logging.getLogger("urllib3.of_this_test").debug("header Authorization: Bearer %s", TOKEN)
    logging.getLogger("urllib3").log(35, "odd level")
    warnings.warn("old", DeprecationWarning, stacklevel=1)

    def dies() -> None:
        raise RuntimeError(f"token={TOKEN}")

    thread = threading.Thread(target=dies, name="watch")
    thread.start()
    thread.join()
    told = [(line["level"], line["message"].partition(":")[0]) for line in lines(stream)]
    # Connections that tests before this one have left may have something to say.
    assert [each for each in told if each[1] != "urllib3.connectionpool"] == [
        ("DEBUG", "urllib3.of_this_test"),
        ("WARNING", "urllib3"),
        ("WARNING", "py.warnings"),
        ("ERROR", "thread watch has died"),
    ]
    assert TOKEN not in stream.getvalue()


def test_trouble_that_goes_on_is_told_at_once_and_then_counted(set_up: SetUp) -> None:
    stream = set_up(log_format="json")
    for port in range(38):
        logger.warning("the API server at port {} does not answer", port)
        logger.info("a step")
    logger.warning("something else")
    logger.bind(fold=False).error("the end of a run")
    logger.bind(fold=False).error("the end of a run")
    logger.remove()
    told = [line["message"] for line in lines(stream) if line["level"] != "INFO"]
    assert told == [
        "the API server at port 0 does not answer",
        "something else",
        "the end of a run",
        "the end of a run",
        "the API server at port 37 does not answer (and 37 more times in 0 s)",
    ]
    assert sum(line["level"] == "INFO" for line in lines(stream)) == 38


def test_the_count_comes_by_itself_at_the_end_of_the_window() -> None:
    told: list[tuple[str, int]] = []
    counted = threading.Event()

    def write(item: str, more: int, seconds: float) -> None:
        told.append((item, more))
        if more:
            counted.set()

    folding = Folding(write, window_s=0.5)
    for item in "abc":
        folding.take("kind", item)
    assert told == [("a", 0)]
    assert counted.wait(60)
    assert told == [("a", 0), ("c", 2)]
    folding.close()
    assert told == [("a", 0), ("c", 2)]


def test_the_id_of_a_run_is_the_same_in_each_process_that_goes_on_with_it() -> None:
    first = run_id("uid-1", "2026-03-01T12:00:00.000Z")
    assert first == run_id("uid-1", "2026-03-01T12:00:00.000Z")
    assert first != run_id("uid-2", "2026-03-01T12:00:00.000Z")
    assert len(first) == 8
