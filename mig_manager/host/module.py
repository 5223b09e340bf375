"""The driver's kernel module, as sysfs shows it: no call of the driver, no device file."""

from __future__ import annotations

import os
from pathlib import Path

_STATE = "module/nvidia/initstate"


def module_load(sys: Path) -> int | None:
    """A number for the present load of the driver's kernel module; the next load has another one.

    It is the inode number of the module's state in sysfs, which numbers its files on and on (kernfs). None: the
    module is not loaded, not ready, or not to be seen.
    """
    try:
        with open(sys / _STATE) as file:
            return os.fstat(file.fileno()).st_ino if file.read().strip() == "live" else None
    except OSError:
        return None
