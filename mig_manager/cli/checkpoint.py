"""`mig-manager checkpoint` and `restore`: keep what the GPUs hold in a file, and bring exactly that back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from mig_manager.cli.change import carried_through, timed
from mig_manager.cli.options import DriverRoot, ResetCommand, Simulate, SimulateState

_EXAMPLES = """\b
Examples:
  mig-manager checkpoint friday.json
  mig-manager restore friday.json --dry-run
  mig-manager restore friday.json
"""


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("checkpoint", epilog=_EXAMPLES, short_help="Write what the GPUs hold into a file.")(
        checkpoint
    )
    app.command("restore", epilog=_EXAMPLES, short_help="Bring back what a checkpoint holds.")(restore)


def checkpoint(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write; - is stdout.")],
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Write the MIG modes and instances of all GPUs, with their placements, into a file.

    `restore` brings them back, and so does nvidia-mig-parted restore.
    """
    import json

    from mig_manager.cli.checkpointfile import checkpoint_document, write_checkpoint
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import write

    with hardware(simulate=simulate, simulate_state=simulate_state, driver_root=driver_root) as gpus:
        inventory = gpus.worker.inventory()
    document = checkpoint_document(inventory)
    text = json.dumps(document, indent=2) + "\n"
    if file == Path("-"):
        write(text)
        return
    write_checkpoint(file, text)
    count = len(document["MigState"]["Devices"])
    write(f"{file}: {count} {'GPU' if count == 1 else 'GPUs'}\n")


def restore(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="File of `checkpoint` or of nvidia-mig-parted checkpoint; - is stdin."
        ),
    ],
    dry_run: Annotated[
        bool, typer.Option("-n", "--dry-run", help="Show what would change. Touches nothing.")
    ] = False,
    reset_command: ResetCommand = None,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Bring back what a checkpoint says: MIG modes, instances and compute instances, each in its place.

    What already is so stays. GPUs are found by UUID; a file of other GPUs is refused. Like `apply`, it drains
    no pod; if a GPU refuses, all get back what they held and the exit code is 3.
    """
    from mig_manager.cli.checkpointfile import read_checkpoint
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import Screen, write
    from mig_manager.cli.restoring import saved_state
    from mig_manager.cli.words import plan_lines
    from mig_manager.gpu.repartition import carry_out
    from mig_manager.planning.explain import gpu_numbers
    from mig_manager.planning.restore import plan_restore

    saved = read_checkpoint(file)
    with hardware(
        simulate=simulate,
        simulate_state=simulate_state,
        driver_root=driver_root,
        reset_command=reset_command,
        change=True,
    ) as gpus:
        now = gpus.worker.inventory()
        plan = replace(plan_restore(saved_state(saved, now), now), layout=str(file))
        others = [index for index in plan.untouched if now.gpus[index].gpu.mig_capable]
        screen = Screen()
        lines = plan_lines(plan, now, None, screen.look)
        with carried_through():
            screen.lines(lines)
            if others:
                write(f"{gpu_numbers(others)}: not in the file, untouched\n")
            if plan.changes and not dry_run:
                with gpus.cleared(plan):
                    timed(gpus.worker, lambda: carry_out(gpus.worker, plan, now, gpus.reset))
