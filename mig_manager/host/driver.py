"""The NVIDIA driver's files and commands, under the root where the driver is installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.layout import GpuIdentity

_LIBRARY = "libnvidia-ml.so.1"
_DIRECTORIES = (
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "lib64",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib/x86_64-linux-gnu/nvidia/current",
    "lib/aarch64-linux-gnu/nvidia/current",
)
"""Where distributions and the driver container put the driver's libraries."""
_MOST_LINKS = 40
"""As the kernel counts (ELOOP)."""
_KEPT_WORDS = 600


def find_library(driver_root: Path | None) -> Path | None:
    """The NVML library under the driver root, with links followed inside that root.

    None: it is in none of the usual directories; let the dynamic loader find it.
    """
    if driver_root is None:
        return None
    for directory in _DIRECTORIES:
        library = _inside(driver_root, Path(directory, _LIBRARY))
        if library is not None and library.is_file():
            return library
    return None


def _inside(root: Path, relative: Path) -> Path | None:
    """The path with links followed as a process chrooted to `root` would; None where they go in circles."""
    done: list[str] = []
    todo = list(reversed(relative.parts))
    links = 0
    while todo:
        part = todo.pop()
        if part == "..":
            del done[-1:]
            continue
        here = root.joinpath(*done, part)
        if not here.is_symlink():
            done.append(part)
            continue
        links += 1
        if links > _MOST_LINKS:
            return None
        target = here.readlink()
        if target.is_absolute():
            done = []
        todo.extend(reversed([each for each in target.parts if each != os.sep]))
    return root.joinpath(*done)


def reset_gpus(
    command: Sequence[str], gpus: Sequence[GpuIdentity], *, root: Path | None, timeout_s: float
) -> None:
    """Reset exactly these GPUs, with one run of a command.

    Args:
        command: an argument list; `{gpus}` in it stands for the UUIDs, joined by commas.
        gpus: what to reset.
        root: where to chroot to for the command; None or `/`: nowhere.
        timeout_s: how long the command may take.

    Raises:
        MigManagerError: RESET_NOT_SUPPORTED, GPU_IN_USE or NVML_ERROR, with the command's own words.
    """
    uuids = ",".join(gpu.uuid for gpu in gpus)
    arguments = [argument.replace("{gpus}", uuids) for argument in command]
    if root is not None and root != Path("/"):
        arguments = ["chroot", str(root), *arguments]
    names = " and ".join(f"GPU {gpu.index}" for gpu in gpus)
    shown = " ".join(arguments)
    try:
        done = subprocess.run(
            arguments,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MigManagerError(
            Reason.NVML_ERROR,
            f"The reset of {names} did not end within {timeout_s:g} s, and was stopped: {shown}",
        ) from None
    except OSError as error:
        raise MigManagerError(
            Reason.NVML_ERROR,
            f"The reset of {names} could not be started: {error.strerror or error}: {shown}",
        ) from None
    if done.returncode == 0:
        return
    words = " ".join(f"{done.stdout} {done.stderr}".split())[-_KEPT_WORDS:]
    raise MigManagerError(
        _reset_reason(words),
        f"The reset of {names} failed with exit status {done.returncode}: {words or 'no output'} ({shown})",
    )


def _reset_reason(words: str) -> Reason:
    """What nvidia-smi's words mean."""
    lower = words.lower()
    if "not supported" in lower or "not permitted" in lower:
        return Reason.RESET_NOT_SUPPORTED
    if "in use" in lower or "used by" in lower:
        return Reason.GPU_IN_USE
    return Reason.NVML_ERROR
