"""`mig-manager generate`: a layout file from the hardware."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from mig_manager.cli.options import DriverRoot, Simulate, SimulateState

_EXAMPLES = """\b
Examples:
  mig-manager generate > layouts.yaml
  mig-manager generate --simulate 4xH100-80GB-HBM3,1xA30 > layouts.yaml
"""


class Format(StrEnum):
    """What `generate` prints."""

    YAML = "yaml"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("generate", epilog=_EXAMPLES)(generate)


def generate(
    output: Annotated[
        Format,
        typer.Option("-o", "--output", "--output-format", help="The same file as YAML or as JSON."),
    ] = Format.YAML,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Print the layouts that this hardware offers as a layout file.

    These are the layouts that serve where no file is given. nvidia-mig-parted reads the file as well: where a
    node has several models, entries choose their GPUs by device id.
    """
    from mig_manager.cli.documents import book_document
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import write, write_json
    from mig_manager.layouts.generate import generate_layouts
    from mig_manager.planning.offers import offers

    with hardware(simulate=simulate, simulate_state=simulate_state, driver_root=driver_root) as gpus:
        inventory = gpus.worker.inventory()
    text = book_document(generate_layouts(offers(inventory)), [state.gpu for state in inventory.gpus])
    if output is Format.YAML:
        write(text)
        return
    import yaml

    write_json(yaml.safe_load(text))
