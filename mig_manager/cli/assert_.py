"""`mig-manager assert`: do the GPUs look like a layout?"""

from __future__ import annotations

from typing import Annotated

import typer

from mig_manager.cli.errors import ExitCode
from mig_manager.cli.options import DriverRoot, LayoutFile, LayoutName, Simulate, SimulateState

_EXAMPLES = """\b
Examples:
  mig-manager assert -f layouts.yaml -c all-1g.10gb && echo as wanted
  mig-manager assert -f layouts.yaml -c all-1g.10gb --mode-only
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("assert", epilog=_EXAMPLES)(assert_)


def assert_(
    selected_config: LayoutName,
    config_file: LayoutFile = None,
    mode_only: Annotated[
        bool, typer.Option("-m", "--mode-only", help="Look at the MIG modes alone, not at the instances.")
    ] = False,
    valid_config: Annotated[
        bool,
        typer.Option("-a", "--valid-config", help="Only ask whether these GPUs can take the layout."),
    ] = False,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Tell whether the GPUs look like a layout.

    Exits with 0 where they do, with 1 and the differences where they do not. A pending mode change and
    leftovers that no MIG device shows are differences, too.
    """
    from mig_manager.cli.choice import all_layouts, choose, read_book
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import write
    from mig_manager.cli.words import difference_lines

    book = read_book(config_file)
    with hardware(simulate=simulate, simulate_state=simulate_state, driver_root=driver_root) as gpus:
        inventory = gpus.worker.inventory()
    choice = choose(all_layouts(book, inventory), selected_config, inventory)
    if valid_config:
        write(f"{selected_config}: these GPUs can take it\n")
        return
    lines = difference_lines(choice.plan, mode_only=mode_only)
    if lines:
        write("".join(f"{line}\n" for line in lines))
        raise typer.Exit(ExitCode.DIFFERS)
    write(f"{selected_config}: the GPUs look like it\n")
