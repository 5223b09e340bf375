"""Commands of the settings run as they would from a shell."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator

import pytest

from mig_manager.host.commands import run

TOLD_TO_END = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture
def deaf() -> Iterator[None]:
    """A process that takes these signals in a thread of its own, as the daemon does."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, TOLD_TO_END)
    yield
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_command_can_be_told_to_end_although_we_block_the_signals(deaf: None) -> None:
    script = "import signal; print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())))"
    assert run([sys.executable, "-c", script], {}, timeout_s=20).words == "[]"
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) >= set(TOLD_TO_END)
