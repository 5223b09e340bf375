"""`mig-manager profiles`, `placements` and `instances`: what GPUs offer, and what they hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.options import DriverRoot, GpuList, Listing, ListingOption, Simulate, SimulateState

if TYPE_CHECKING:
    from mig_manager.cli.documents import Document
    from mig_manager.planning.state import GpuState

_EXAMPLES = """\b
Examples:
  mig-manager profiles --gpu 0               (nvidia-smi mig -lgip)
  mig-manager placements --gpu 0             (nvidia-smi mig -lgipp)
  mig-manager instances                      (nvidia-smi mig -lgi)
  mig-manager instances --compute            (nvidia-smi mig -lci)
  mig-manager instances -o json
  mig-manager profiles --simulate H200
"""


def add_to(app: typer.Typer) -> None:
    """Register the commands."""
    app.command("profiles", epilog=_EXAMPLES, short_help="List the profiles, and how many more fit.")(
        profiles
    )
    app.command("placements", epilog=_EXAMPLES, short_help="List where instances may lie, and could now.")(
        placements
    )
    app.command("instances", epilog=_EXAMPLES, short_help="List the instances that are there.")(instances)


def profiles(
    gpu: GpuList = None,
    output: ListingOption = Listing.TEXT,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """List the GPU-instance profiles: ID, how many more fit and how many at most, memory, engines.

    How many more fit is counted beside the instances that are there; - where MIG is off.
    """
    from mig_manager.cli.tables import profile_document, profile_table

    states = _states(gpu, simulate, simulate_state, driver_root)
    _print(output, states, profile_document, profile_table)


def placements(
    gpu: GpuList = None,
    output: ListingOption = Listing.TEXT,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """List where instances of each profile may lie, and where they could now: {first slices}:size."""
    from mig_manager.cli.tables import placement_document, placement_table

    states = _states(gpu, simulate, simulate_state, driver_root)
    _print(output, states, placement_document, placement_table)


def instances(
    gpu: GpuList = None,
    compute: Annotated[
        bool, typer.Option("--compute", help="List the compute instances, which are the MIG devices.")
    ] = False,
    output: ListingOption = Listing.TEXT,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """List the GPU instances, also those without compute instances. JSON and YAML have both kinds."""
    from mig_manager.cli.tables import compute_table, instance_document, instance_table

    states = _states(gpu, simulate, simulate_state, driver_root)
    _print(output, states, instance_document, compute_table if compute else instance_table)
    if output is Listing.TEXT:
        from mig_manager.cli.output import write
        from mig_manager.cli.tables import without_rows

        write("".join(f"{line}\n" for line in without_rows(states)))


def _states(
    gpu: str | None, simulate: str | None, simulate_state: Path | None, driver_root: Path | None
) -> tuple[GpuState, ...]:
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.selection import select_gpus

    with hardware(simulate=simulate, simulate_state=simulate_state, driver_root=driver_root) as gpus:
        return select_gpus(gpu, gpus.worker.inventory())


def _print(
    output: Listing,
    states: Sequence[GpuState],
    document: Callable[[Sequence[GpuState]], Document],
    table: Callable[[Sequence[GpuState]], list[str]],
) -> None:
    from mig_manager.cli.output import write, write_listing

    if output is Listing.TEXT:
        write("".join(f"{line}\n" for line in table(states)))
    else:
        write_listing(document(states), output)
