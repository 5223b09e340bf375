"""The CDI specification of the GPUs, made anew after their MIG devices have changed."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mig_manager.host.commands import CommandError, run

SPECIFICATION = Path("/var/run/cdi/management.nvidia.com-gpu.yaml")

COMMANDS = (
    (
        "chroot",
        "{host}",
        "nvidia-ctk",
        "cdi",
        "generate",
        "--mode=management",
        "--vendor=management.nvidia.com",
        "--class=gpu",
        "--driver-root={driver_root}",
        "--dev-root={dev_root}",
        "--nvidia-cdi-hook-path={hook}",
        "--output={output}",
    ),
)
"""What makes the specification that privileged management containers, such as the operands', run with.

By the host's own nvidia-ctk, which is of one version with the hook that the specification names; the directory of
the specification has the same path there. In the commands stand, besides `{output}`: `{host}` for the host's root
directory as this container has it, `{driver_root}` and `{dev_root}` for the roots as the host has them,
`{driver_root_here}` and `{dev_root_here}` for the same as this container has them, `{hook}` for the path of
nvidia-cdi-hook on the host.
"""


def refresh_cdi(
    commands: Sequence[Sequence[str]], specification: Path, values: Mapping[str, str], *, timeout_s: float
) -> tuple[str, ...]:
    """Run the commands one after the other, then put what they wrote in the place of the specification.

    Args:
        commands: argument lists; `{output}` in them stands for a file beside the specification.
        specification: what container runtimes read. It is replaced in one step, or left as it is.
        values: what else stands in the commands, by name.
        timeout_s: how long each command may take.

    Returns:
        What went wrong, in words; empty when all is well. Nothing is raised: the GPUs are as they should be.
    """
    try:
        specification.parent.mkdir(parents=True, exist_ok=True)
        # Runtimes read every specification of the directory, and none of those in directories below it.
        work = Path(tempfile.mkdtemp(prefix=".mig-manager-", dir=specification.parent))
    except OSError as error:
        return (f"No CDI specification can be written to {specification.parent}: {error.strerror or error}.",)
    try:
        return _make(commands, work / specification.name, specification, values, timeout_s)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _make(
    commands: Sequence[Sequence[str]],
    output: Path,
    specification: Path,
    values: Mapping[str, str],
    timeout_s: float,
) -> tuple[str, ...]:
    stale = f"{specification} is as it was before"
    for command in commands:
        try:
            done = run(command, {**values, "output": str(output)}, timeout_s=timeout_s)
        except CommandError as error:
            return (f"{stale}: a command {error}",)
        if done.status:
            words = done.words or "no output"
            return (f"{stale}: a command failed with exit status {done.status}: {words} ({done.shown})",)
    try:
        if not output.stat().st_size:
            return (f"{stale}: the commands wrote an empty one.",)
        output.chmod(0o644)
        os.replace(output, specification)
    except FileNotFoundError:
        return (f"{stale}: none of the commands wrote {{output}}.",)
    except OSError as error:
        return (f"{stale}: {error.strerror or error}.",)
    return ()
