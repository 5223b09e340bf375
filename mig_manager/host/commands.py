"""Running a command that is a setting: an argument list, inside the root that its files lie under."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_KEPT_WORDS = 600


class CommandError(Exception):
    """The command could not be started, or did not end in time. `str(error)` says which, and the command."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that came to its end."""

    shown: str
    """The command as it was run."""
    status: int
    """Exit status; negative for a signal."""
    words: str
    """The end of what it printed, in one line."""


def run(
    command: Sequence[str], values: Mapping[str, str], *, root: Path | None = None, timeout_s: float
) -> Finished:
    """Run a command to its end.

    Args:
        command: an argument list.
        values: what stands in it for `{name}`.
        root: where to chroot to for it; None or `/`: nowhere.
        timeout_s: how long it may take.

    Raises:
        CommandError: it did not come to its end.
    """
    arguments = [_filled(argument, values) for argument in command]
    if root is not None and root != Path("/"):
        arguments = ["chroot", str(root), *arguments]
    shown = " ".join(arguments)
    try:
        process = _started(arguments)
    except OSError as error:
        raise CommandError(f"could not be started: {error.strerror or error}: {shown}") from None
    with process:
        try:
            said = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise CommandError(f"did not end within {timeout_s:g} s, and was stopped: {shown}") from None
        except BaseException:
            process.kill()
            raise
    words = " ".join(" ".join(said).split())[-_KEPT_WORDS:]
    return Finished(shown, process.returncode, words)


def _started(arguments: Sequence[str]) -> subprocess.Popen[str]:
    """The process, which blocks no signal: it has the mask of the thread that starts it, and not the daemon's.

    Raises:
        OSError: it could not be started.
    """

    def start() -> subprocess.Popen[str]:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        return subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )

    with ThreadPoolExecutor(1, thread_name_prefix="command") as thread:
        return thread.submit(start).result()


def _filled(argument: str, values: Mapping[str, str]) -> str:
    # str.format would stumble over other braces.
    for name, value in values.items():
        argument = argument.replace(f"{{{name}}}", value)
    return argument
