"""Exit codes, and how a failure is told on stderr."""

from __future__ import annotations

from enum import IntEnum

from mig_manager.errors import MigManagerError, Reason


class ExitCode(IntEnum):
    """What a command's exit status means. Scripts may rely on it."""

    DONE = 0
    """Done, feasible, or asserted and true."""
    DIFFERS = 1
    """Asserted, and the GPUs differ."""
    BAD_INPUT = 2
    """Bad input, or a layout that these GPUs cannot take. Nothing was touched."""
    REFUSED = 3
    """The GPU, its driver or the node refused."""
    BUG = 70
    """A mistake in mig-manager itself (EX_SOFTWARE of sysexits.h)."""
    INTERRUPTED = 130
    """Ended by Ctrl-C, as shells count it."""


class InputError(Exception):
    """Bad input that concerns this command alone, such as a state file that cannot be read.

    `str(error)` is one message for the user.
    """


_BAD_INPUT = frozenset(
    {
        Reason.UNKNOWN_LAYOUT,
        Reason.INVALID_LAYOUT,
        Reason.UNSUPPORTED_PROFILE,
        Reason.IMPOSSIBLE_LAYOUT,
        Reason.STRATEGY_MISMATCH,
    }
)


def exit_code(error: MigManagerError) -> ExitCode:
    """Tell bad input from a refusal of the GPU."""
    return ExitCode.BAD_INPUT if error.reason in _BAD_INPUT else ExitCode.REFUSED


def told(error: MigManagerError) -> str:
    """A failure with its reason and its findings, one a line."""
    return f"error: {error.reason}: {error.message}"
