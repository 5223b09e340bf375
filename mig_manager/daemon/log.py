"""How the daemon logs: text for people, JSON lines for collectors, and the id of the run on each of its lines.

Everything that the process says goes this way: also what libraries warn of, and what a thread dies of.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, TextIO

from loguru import logger

from mig_manager.daemon.folding import WINDOW_S, Folding
from mig_manager.daemon.settings import Settings
from mig_manager.redaction import redacted

if TYPE_CHECKING:
    from loguru import Message

_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029]")
_PASSING = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+|\b\d+(\.\d+)? (s|min)\b|\b0x[0-9a-f]{6,}|\bport \d+|:\d{5}\b")
"""What may differ in two messages that say the same: times, addresses in memory, ports of one connection."""
_LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
"""Those that loguru and Python's logging have in common."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line, without any secret."""

    time: datetime
    level: str
    message: str
    node: str
    run: str = ""
    """Id of the run that was under way; empty between runs."""
    phase: str = ""
    """Where that run stood."""
    exception: str = ""
    """Traceback, with line ends."""

    def as_text(self) -> str:
        """For people: a line, and the traceback below it."""
        run = f"[{self.run}] " if self.run else ""
        message = _CONTROL.sub(lambda found: repr(found[0])[1:-1], self.message)
        head = f"{self.time:%Y-%m-%d %H:%M:%S}.{self.time.microsecond // 1000:03} {self.level:<7} {run}{message}\n"
        return head + (f"{self.exception.rstrip()}\n" if self.exception else "")

    def as_json(self, *, ascii_only: bool = False) -> str:
        """For collectors: one JSON object in one line, whatever the message holds; no key without a value."""
        values = {
            "time": self.time.isoformat(timespec="milliseconds"),
            "level": self.level,
            "message": self.message,
            "node": self.node,
            "run": self.run,
            "phase": self.phase,
            "exception": self.exception.rstrip(),
        }
        kept = {key: value for key, value in values.items() if value}
        text = (
            json.dumps(kept, ensure_ascii=ascii_only)
            .replace("\u2028", r"\u2028")
            .replace("\u2029", r"\u2029")
        )
        # A lone surrogate, as in a file name that is no text, becomes an escape that JSON has as well.
        return text.encode(errors="backslashreplace").decode() + "\n"


class _Story:
    """The run under way. There is one at most; all threads of the process work for it."""

    run = ""
    phase: Callable[[], str] = staticmethod(str)


_STORY = _Story()


class _Sink:
    """Writes each line in one piece. loguru calls it in one thread at a time, and stops it at the end."""

    def __init__(self, stream: TextIO, node: str, *, as_text: bool, window_s: float) -> None:
        self._stream = stream
        self._node = node
        self._as_text = as_text
        self._ascii_only = (stream.encoding or "").lower().replace("-", "") != "utf8"
        self._folding = Folding(self._folded, window_s)

    def write(self, message: Message) -> None:
        record = message.record
        line = Line(
            time=record["time"],
            level=record["level"].name,
            message=redacted(record["message"]),
            node=self._node,
            run=_STORY.run,
            phase=_STORY.phase() if _STORY.run else "",
            exception=redacted(str(message)),
        )
        if record["level"].no < _LEVELS["WARNING"] or record["extra"].get("fold") is False:
            self._put(line)
        else:
            kind = (record["name"], record["line"], line.level, _PASSING.sub("", line.message))
            self._folding.take(kind, line)

    def stop(self) -> None:
        self._folding.close()

    def _folded(self, line: Line, more: int, seconds: float) -> None:
        self._put(line if not more else _with_count(line, more, seconds))

    def _put(self, line: Line) -> None:
        self._stream.write(line.as_text() if self._as_text else line.as_json(ascii_only=self._ascii_only))
        self._stream.flush()


class _FromLogging(logging.Handler):
    """Takes what libraries log in Python's own way."""

    def emit(self, record: logging.LogRecord) -> None:
        level = max(
            (name for name in _LEVELS if _LEVELS[name] <= record.levelno),
            key=_LEVELS.__getitem__,
            default="DEBUG",
        )
        logger.opt(exception=record.exc_info).log(level, "{}: {}", record.name, record.getMessage())


def set_up_logging(settings: Settings, stream: TextIO | None = None, *, window_s: float = WINDOW_S) -> None:
    """Send everything to stderr (or `stream`), in the format and from the level that the settings name.

    `window_s`: how long warnings and errors that come again are only counted.
    """
    out = stream or sys.stderr
    as_text = settings.log_format == "text" or (settings.log_format == "auto" and out.isatty())
    logger.remove()
    logger.add(
        _Sink(out, settings.node_name, as_text=as_text, window_s=window_s),
        level=settings.log_level,
        format=lambda record: "{exception}",
        backtrace=False,
        diagnose=False,  # It would show the values of variables.
    )
    logging.basicConfig(handlers=[_FromLogging()], level=settings.log_level, force=True)
    logging.getLogger("urllib3.util.retry").setLevel(
        logging.INFO
    )  # It tells of each request that it is not retried.
    logging.captureWarnings(True)
    threading.excepthook = _of_a_thread
    sys.excepthook = lambda *error: logger.opt(exception=error).critical("unexpected error")


@contextmanager
def lines_of_run(run: str, phase: Callable[[], str]) -> Iterator[None]:
    """Put the id of a run, and where it stands, on every line of the block, whichever thread says it."""
    _STORY.phase, _STORY.run = phase, run
    try:
        yield
    finally:
        _STORY.run = ""


def run_id(node_uid: str, started_at: str) -> str:
    """The id of the run that began on that Node at that time: the same in each process that goes on with it."""
    return hashlib.sha256(f"{node_uid} {started_at}".encode()).hexdigest()[:8]


def _with_count(line: Line, more: int, seconds: float) -> Line:
    span = f"{seconds / 60:.0f} min" if seconds >= 60 else f"{seconds:.0f} s"
    times = "once more" if more == 1 else f"{more} more times"
    return replace(line, message=f"{line.message} (and {times} in {span})", exception="")


def _of_a_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread is not None else "?"
    error = (args.exc_type, args.exc_value, args.exc_traceback)
    logger.opt(exception=error).error("thread {} has died", name)
