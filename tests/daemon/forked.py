"""Daemons that are forked from a process that has loaded their modules; to load them is most of a real start."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
from collections.abc import Mapping
from multiprocessing.connection import wait
from pathlib import Path
from subprocess import TimeoutExpired

from mig_manager.daemon.main import main

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["mig_manager.daemon.main"])
_LOCK = threading.Lock()
"""An exit status can be read once."""


class ForkedDaemon:
    """A daemon in a process of its own, to be handled as a subprocess.Popen is."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        """It appends what it writes to the log."""
        self._process = _CONTEXT.Process(target=_run, args=(dict(environment), log), daemon=True)
        with _LOCK:
            self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """The exit status (of a signal: negative), or None while it runs."""
        with _LOCK:
            return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises subprocess.TimeoutExpired."""
        wait([self._process.sentinel], timeout)
        status = self.poll()
        if status is None:
            raise TimeoutExpired("the daemon", timeout or 0.0)
        return status

    def kill(self) -> None:
        """SIGKILL."""
        self._process.kill()

    def terminate(self) -> None:
        """SIGTERM."""
        self._process.terminate()


def _run(environment: Mapping[str, str], log: Path) -> None:
    os.environ.clear()
    os.environ.update(environment)
    opened = os.open(log, os.O_WRONLY | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(opened, standard)
    sys.argv[1:] = []
    main()
