"""What all commands that change GPUs share: they are never left half-changed, and they tell how it went."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from mig_manager.cli.output import complain, write

if TYPE_CHECKING:
    from mig_manager.gpu.worker import GpuWorker
    from mig_manager.planning.state import Inventory


@contextmanager
def carried_through() -> Iterator[None]:
    """GPUs are never left half-changed: Ctrl-C and SIGTERM wait for the change, or for its way back."""

    def tell(_number: int, _frame: object) -> None:
        complain(
            "the GPUs are being changed; this ends when they hold the new layout, or the previous one again"
        )

    before = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def timed(worker: GpuWorker, change: Callable[[], Inventory], *, quiet: bool = False) -> Inventory:
    """Make a change; unless `quiet`, tell how long it took. Call it within `carried_through`."""
    from mig_manager.gpu.nvml import MUTATING

    began = time.monotonic()
    after = change()
    changes = sum(call.function in MUTATING for call in worker.calls)
    if not quiet:
        write(f"done in {time.monotonic() - began:.1f} s with {changes} changing NVML calls; read back\n")
    return after
