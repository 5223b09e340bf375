"""`mig-manager export`: the GPUs as they are, as a file."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mig_manager.cli.options import DriverRoot, Simulate, SimulateState

_EXAMPLES = """\b
Examples:
  mig-manager export > layouts.yaml           (a layout file with the layout "current")
  mig-manager export -l friday > layouts.yaml
  mig-manager export -o json > gpus.json      (for: mig-manager plan --current gpus.json)
"""


class Format(StrEnum):
    """What `export` prints."""

    YAML = "yaml"
    JSON = "json"
    TEXT = "text"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("export", epilog=_EXAMPLES)(export)


def export(
    output: Annotated[
        Format,
        typer.Option(
            "-o",
            "--output",
            "--output-format",
            help="A layout file (yaml), every instance with its placement (json), or pictures (text).",
        ),
    ] = Format.YAML,
    config_label: Annotated[
        str,
        typer.Option("-l", "--config-label", metavar="NAME", help="Name of the layout in the layout file."),
    ] = "current",
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Print the GPUs as they are."""
    from mig_manager.cli.documents import layout_document, state_document
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import Screen, complain, write, write_json

    with hardware(simulate=simulate, simulate_state=simulate_state, driver_root=driver_root) as gpus:
        inventory = gpus.worker.inventory()
    if output is Format.JSON:
        write_json(state_document(inventory))
    elif output is Format.YAML:
        write(layout_document(inventory, config_label))
    else:
        from mig_manager.cli.words import state_lines

        screen = Screen()
        screen.lines(state_lines(inventory, screen.look))
    for state in inventory.gpus:
        for instance in state.instances:
            if not instance.compute and output is Format.YAML:
                complain(
                    f"note: GPU {state.gpu.index} has a {instance.profile} without compute instances; "
                    "a layout file cannot say so"
                )
