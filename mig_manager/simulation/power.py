"""The power of a simulated node: it goes down and comes up again when its reboot command asks for that.

python -m mig_manager.simulation.power --state FILE
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from mig_manager.simulation.gpus import SimulatedGpus

_REBOOT = b"reboot\n"
_END = b"end\n"


class Power:
    """Listens to the reboot command, on a named pipe beside the state file, from `start` to `stop`."""

    def __init__(self, gpus: SimulatedGpus, reboot: Callable[[], None]) -> None:
        """`reboot` is called for each command, in a thread of its own."""
        self._pipe = _pipe(gpus)
        self._reboot = reboot
        self._fd: int | None = None
        self._thread = threading.Thread(target=self._listen, name="simulated-power", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._pipe.unlink(missing_ok=True)
        os.mkfifo(self._pipe)
        self._fd = os.open(self._pipe, os.O_RDWR | os.O_CLOEXEC)
        self._thread.start()

    def stop(self) -> None:
        """Finish the reboot in hand, and begin no other."""
        if self._fd is None:
            return
        os.write(self._fd, _END)
        self._thread.join()
        os.close(self._fd)
        self._fd = None

    def _listen(self) -> None:
        assert self._fd is not None
        with open(self._fd, "rb", closefd=False) as commands:
            for command in commands:
                if command == _END:
                    return
                self._reboot()


def main(arguments: Sequence[str] | None = None) -> int:
    """Ask for a reboot; returns the exit code."""
    parser = argparse.ArgumentParser(prog="reboot")
    parser.add_argument("--state", required=True, type=Path)
    gpus = SimulatedGpus.open(parser.parse_args(arguments).state)
    what = gpus.ask_for_reboot()
    if what == "ignored" or (what != "refused" and _tell(_pipe(gpus))):
        return 0
    sys.stderr.write("Failed to connect to bus: No such file or directory\n")
    sys.stderr.write("Failed to talk to init daemon.\n")
    return 1


def _tell(pipe: Path) -> bool:
    """Pass the command on; whether somebody listens."""
    try:
        fd = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(fd, _REBOOT)
    finally:
        os.close(fd)
    return True


def _pipe(gpus: SimulatedGpus) -> Path:
    return Path(f"{gpus.path}.power")


if __name__ == "__main__":
    sys.exit(main())
