"""Reboots of the node: which boot this is, and the command that asks for the next one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.commands import CommandError, run


def boot_id(proc: Path) -> str:
    """The id that the kernel gives each of its boots; containers see the host's.

    Raises:
        MigManagerError: REBOOT_REQUIRED; without it nobody could tell whether a reboot has happened.
    """
    path = proc / "sys/kernel/random/boot_id"
    try:
        found = path.read_text().strip()
    except OSError as error:
        raise MigManagerError(
            Reason.REBOOT_REQUIRED, f"The node's boot id cannot be read: {error.strerror or error}: {path}."
        ) from None
    return found


def reboot(command: Sequence[str], *, host: Path, timeout_s: float) -> None:
    """Ask for a reboot. That the command ends well does not mean that one comes.

    Args:
        command: an argument list; `{host}` in it stands for where the host's root directory is mounted.
        host: that place.
        timeout_s: how long the command may take.

    Raises:
        MigManagerError: REBOOT_REQUIRED, with the command's own words; it failed, or did not end.
    """
    try:
        done = run(command, {"host": str(host)}, timeout_s=timeout_s)
    except CommandError as error:
        raise MigManagerError(Reason.REBOOT_REQUIRED, f"The reboot command {error}") from None
    # Killed by a signal: the node goes down and takes the command along.
    if done.status > 0:
        raise MigManagerError(
            Reason.REBOOT_REQUIRED,
            f"The reboot command failed with exit status {done.status}: {done.words or 'no output'}"
            f" ({done.shown})",
        )
