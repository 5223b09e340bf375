"""`mig-manager plan`: what a layout would change, without touching anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.errors import ExitCode, exit_code
from mig_manager.cli.options import DriverRoot, LayoutFile, Output, Simulate, SimulateState
from mig_manager.errors import MigManagerError

if TYPE_CHECKING:
    from mig_manager.layouts.book import LayoutBook
    from mig_manager.planning.plan import NodePlan
    from mig_manager.planning.state import Inventory

_EXAMPLES = """\b
Examples:
  mig-manager plan -f layouts.yaml -c all-1g.10gb
  mig-manager plan -f layouts.yaml            (does every layout of it fit?)
  mig-manager plan --simulate 8xH200 -c all-balanced -o json
  mig-manager plan --current gpus.json -f layouts.yaml -c mixed
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("plan", epilog=_EXAMPLES)(plan)


def plan(
    config_file: LayoutFile = None,
    selected_config: Annotated[
        str | None,
        typer.Option(
            "-c",
            "--selected-config",
            metavar="LAYOUT",
            help="Name of the layout. Without it, every layout is tried and listed.",
        ),
    ] = None,
    output: Annotated[
        Output, typer.Option("-o", "--output", "--output-format", help="Text for people, or JSON.")
    ] = Output.TEXT,
    current: Annotated[
        Path | None,
        typer.Option(
            "--current",
            metavar="FILE",
            help="Take the GPUs from a file that `export -o json` has printed; - is stdin.",
        ),
    ] = None,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Show what a layout would keep, destroy and create. Touches nothing.

    Exits with 0 where the layout fits, with 2 and the reason where it does not.
    """
    if current is not None and (simulate is not None or simulate_state is not None):
        raise typer.BadParameter(
            "cannot go with --simulate; one of them says what the GPUs are", param_hint="--current"
        )
    from mig_manager.cli.choice import all_layouts, read_book

    try:
        book = read_book(config_file)
        inventory = _inventory(current, simulate, simulate_state, driver_root)
        layouts = all_layouts(book, inventory)
        if selected_config is None:
            _try_all(book or layouts, inventory, output)
        else:
            _show(layouts, selected_config, inventory, output)
    except MigManagerError as error:
        if output is Output.JSON and exit_code(error) is ExitCode.BAD_INPUT:
            from mig_manager.cli.documents import refusal_document
            from mig_manager.cli.output import write_json

            write_json(refusal_document(selected_config, error))
        raise


def _inventory(
    current: Path | None, simulate: str | None, simulate_state: Path | None, driver_root: Path | None
) -> Inventory:
    if current is not None:
        from mig_manager.cli.statefile import read_state

        return read_state(current)
    from mig_manager.cli.hardware import hardware

    with hardware(simulate=simulate, simulate_state=simulate_state, driver_root=driver_root) as gpus:
        inventory = gpus.worker.inventory()
    return inventory if simulate is None and simulate_state is None else _from_catalogue(inventory)


def _from_catalogue(inventory: Inventory) -> Inventory:
    """Simulated GPUs know no more than the catalogue does: what it assumes stays marked."""
    from mig_manager.planning.catalogue import model_of

    states = []
    for state in inventory.gpus:
        model = model_of(state.gpu)
        states.append(replace(state, geometry=model.geometry) if model is not None else state)
    return replace(inventory, gpus=tuple(states))


def _show(layouts: LayoutBook, name: str, inventory: Inventory, output: Output) -> None:
    from mig_manager.cli.choice import choose
    from mig_manager.cli.documents import plan_document
    from mig_manager.cli.output import Screen, write_json

    choice = choose(layouts, name, inventory)
    if output is Output.JSON:
        write_json(plan_document(choice.plan, inventory))
        return
    from mig_manager.cli.words import plan_lines

    screen = Screen()
    screen.lines(plan_lines(choice.plan, inventory, choice.layout, screen.look))


def _try_all(layouts: LayoutBook, inventory: Inventory, output: Output) -> None:
    from mig_manager.cli.choice import choose
    from mig_manager.cli.documents import plan_document, refusal_document
    from mig_manager.cli.output import Screen, write_json
    from mig_manager.cli.words import trial_lines

    trials: dict[str, NodePlan | MigManagerError] = {}
    for name in layouts.layouts:
        try:
            trials[name] = choose(layouts, name, inventory).plan
        except MigManagerError as error:
            trials[name] = error
    if output is Output.JSON:
        documents = [
            refusal_document(name, outcome)
            if isinstance(outcome, MigManagerError)
            else plan_document(outcome, inventory)
            for name, outcome in trials.items()
        ]
        write_json({"layouts": documents})
    else:
        Screen().lines(trial_lines(trials))
