"""The NVIDIA driver's files, under the root where the driver is installed."""

from __future__ import annotations

import os
from pathlib import Path

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
