"""`mig-manager apply`: make the GPUs look like a layout, by hand."""

from __future__ import annotations

import typer

from mig_manager.cli.change import carried_through, timed
from mig_manager.cli.options import DriverRoot, LayoutFile, LayoutName, ResetCommand, Simulate, SimulateState

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
    reset_command: ResetCommand = None,
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
    from mig_manager.cli.output import Screen
    from mig_manager.cli.words import plan_lines
    from mig_manager.gpu.repartition import repartition

    book = read_book(config_file)
    with hardware(
        simulate=simulate,
        simulate_state=simulate_state,
        driver_root=driver_root,
        reset_command=reset_command,
        change=True,
    ) as gpus:
        before = gpus.worker.inventory()
        choice = choose(all_layouts(book, before), selected_config, before)
        screen = Screen()
        lines = plan_lines(choice.plan, before, choice.layout, screen.look)
        if not choice.plan.changes:
            screen.lines(lines)
            return
        with carried_through():
            screen.lines(lines)
            with gpus.cleared(choice.plan) as who:
                timed(
                    gpus.worker,
                    lambda: repartition(gpus.worker, choice.target, choice.plan, before, gpus.reset, who=who),
                )
