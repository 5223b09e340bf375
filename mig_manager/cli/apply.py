"""`mig-manager apply`: make the GPUs look like a layout, by hand."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from mig_manager.cli.options import DriverRoot, LayoutFile, LayoutName, Simulate, SimulateState
from mig_manager.cli.output import complain

_EXAMPLES = """\b
Examples:
  mig-manager apply -f layouts.yaml -c all-1g.10gb
  mig-manager apply -c all-disabled
  mig-manager apply --simulate 2xA30 --simulate-state gpus.json -c all-balanced
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("apply", epilog=_EXAMPLES)(apply)


def apply(
    selected_config: LayoutName,
    config_file: LayoutFile = None,
    reset_command: Annotated[
        str | None,
        typer.Option(
            "--reset-command",
            metavar="COMMAND",
            help="What resets GPUs; {gpus} stands for their UUIDs. Default: nvidia-smi --gpu-reset -i {gpus}",
        ),
    ] = None,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Make the GPUs of this machine look like a layout.

    Reads back that it holds. Talks to the GPUs alone: it drains no pod and stops no GPU client; on a
    Kubernetes node, set the label instead. If a GPU refuses, all GPUs get their previous layout back and the
    exit code is 3.
    """
    from mig_manager.cli.choice import all_layouts, choose, read_book
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import Screen, write
    from mig_manager.cli.words import plan_lines
    from mig_manager.gpu.nvml import MUTATING
    from mig_manager.gpu.repartition import repartition

    book = read_book(config_file)
    with hardware(
        simulate=simulate,
        simulate_state=simulate_state,
        driver_root=driver_root,
        reset_command=reset_command,
    ) as gpus:
        before = gpus.worker.inventory()
        choice = choose(all_layouts(book, before), selected_config, before)
        screen = Screen()
        lines = plan_lines(choice.plan, before, choice.layout, screen.look)
        if not choice.plan.changes:
            screen.lines(lines)
            return
        began = time.monotonic()
        with _carried_through():
            screen.lines(lines)
            repartition(gpus.worker, choice.target, choice.plan, before, gpus.reset)
        changes = sum(call.function in MUTATING for call in gpus.worker.calls)
        write(f"done in {time.monotonic() - began:.1f} s with {changes} changing NVML calls; read back\n")


@contextmanager
def _carried_through() -> Iterator[None]:
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
