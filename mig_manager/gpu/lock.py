"""One change of a machine's GPUs at a time: two would destroy each other's work, each by its way back."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.nvml import NvmlSource

_PLACES = (Path("/run/lock"), Path("/run"))


@contextmanager
def sole_changer(source: NvmlSource) -> Iterator[None]:
    """Nobody else who asks for this changes these GPUs meanwhile; the kernel lets go of it when we end.

    Take it before the GPUs are read that a change is planned for. It holds among processes that see the same
    /run, so not between a container and its host.

    Raises:
        MigManagerError: GPU_IN_USE; somebody else has it. Names the process.
    """
    path = _path(source)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode(errors="replace").strip() or "unknown"
            raise MigManagerError(
                Reason.GPU_IN_USE,
                f"Another mig-manager is changing these GPUs (pid {holder}, by {path}); try again when it has ended.",
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)


def _path(source: NvmlSource) -> Path:
    if source.loader is not None:
        return Path(f"{source.argument}.change")
    place = next((each for each in _PLACES if os.access(each, os.W_OK)), Path(tempfile.gettempdir()))
    return place / "mig-manager.lock"
