"""`mig-manager create`: instances named by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.change import carried_through, timed
from mig_manager.cli.options import DriverRoot, GpuList, Listing, ListingOption, Simulate, SimulateState

if TYPE_CHECKING:
    from mig_manager.cli.selection import ProfileWord
    from mig_manager.planning.geometry import ComputeProfile
    from mig_manager.planning.plan import GpuPlan
    from mig_manager.planning.state import GpuInstance, GpuState

_EXAMPLES = """\b
Examples:
  mig-manager create 19,19,19 --gpu 0        (nvidia-smi mig -i 0 -cgi 19,19,19 -C)
  mig-manager create 1g.10gb,3g.40gb:4 --gpu 0
  mig-manager create 3g.40gb --no-compute    (nvidia-smi mig -cgi 3g.40gb)
  mig-manager create 1c.3g.40gb,1c.3g.40gb --gpu 0 --gi 2
                                             (nvidia-smi mig -i 0 -gi 2 -cci 0,0)
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("create", epilog=_EXAMPLES, short_help="Create instances beside those that are there.")(
        create
    )


def create(
    profiles: Annotated[
        list[str],
        typer.Argument(
            metavar="PROFILES...",
            help="IDs or names with commas between them; :N after one is its first memory slice.",
        ),
    ],
    gpu: GpuList = None,
    gi: Annotated[
        int | None,
        typer.Option(
            "--gi", metavar="ID", help="Create compute instances in this GPU instance; IDs are then theirs."
        ),
    ] = None,
    compute: Annotated[
        bool,
        typer.Option(
            "--compute/--no-compute",
            "-C",
            help="Whether each GPU instance gets a compute instance that fills it.",
        ),
    ] = True,
    output: ListingOption = Listing.TEXT,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Create instances beside those that are there, which stay as they are.

    All or none: if a GPU refuses one, the others go again and the exit code is 3. Where no first slice is
    given, an instance lies where it leaves the most places open for others. A name such as 1c.3g.40gb makes a
    GPU instance with a compute instance of that size. With several GPUs, each of them gets the same.
    """
    from mig_manager.cli.errors import InputError
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.selection import gpus_to_change, parse_profiles
    from mig_manager.gpu.repartition import carry_out
    from mig_manager.planning.plan import NodePlan

    words = parse_profiles(profiles)
    with hardware(
        simulate=simulate, simulate_state=simulate_state, driver_root=driver_root, change=True
    ) as gpus:
        before = gpus.worker.inventory()
        states = gpus_to_change(gpu, before)
        if gi is not None and len(states) > 1:
            raise InputError("--gi names an instance of one GPU; --gpu must name that one alone")
        plans = [
            _inside(words, state, gi) if gi is not None else _beside(words, state, compute)
            for state in states
        ]
        chosen = {state.gpu.index for state in states}
        untouched = tuple(state.gpu.index for state in before.gpus if state.gpu.index not in chosen)
        plan = NodePlan("create", tuple(plans), untouched)
        with carried_through():
            after = timed(
                gpus.worker,
                lambda: carry_out(gpus.worker, plan, before, gpus.reset),
                quiet=output is not Listing.TEXT,
            )
    _tell(states, [after.gpus[state.gpu.index] for state in states], output, inside=gi is not None)


def _beside(words: Sequence[ProfileWord], state: GpuState, compute: bool) -> GpuPlan:
    from mig_manager.cli.errors import InputError
    from mig_manager.cli.selection import geometry_of, resolve_word
    from mig_manager.planning.hand import NewByHand, plan_create

    wanted = []
    for word in words:
        profile, slices = resolve_word(word, state)
        if not compute and slices != profile.name.gpu_slices:
            raise InputError(
                f"{word.text} names a compute instance, and --no-compute forbids them; write {profile.name}"
            )
        wanted.append(NewByHand(profile, word.start, slices if compute else None))
    return plan_create(state, geometry_of(state), wanted)


def _inside(words: Sequence[ProfileWord], state: GpuState, gi: int) -> GpuPlan:
    from mig_manager.cli.selection import find_instance
    from mig_manager.planning.hand import plan_compute

    instance = find_instance(state, gi)
    return plan_compute(
        state, instance, [(_compute_profile(word, state, instance), word.start) for word in words]
    )


def _compute_profile(word: ProfileWord, state: GpuState, instance: GpuInstance) -> ComputeProfile:
    from mig_manager.cli.selection import geometry_of, resolve_word
    from mig_manager.errors import MigManagerError, Reason
    from mig_manager.planning.hand import instance_words

    offers: tuple[ComputeProfile, ...] = ()
    for profile in geometry_of(state).profiles:
        if profile.profile_id == instance.profile_id:
            offers = profile.compute
    wanted: int | None = None
    if isinstance(word.wanted, int):
        wanted = next((offer.slices for offer in offers if offer.profile_id == word.wanted), None)
    else:
        holder, slices = resolve_word(word, state)
        wanted = slices if holder.profile_id == instance.profile_id else None
    for offer in offers:
        starts = [place.start for place in offer.placements]
        if offer.slices == wanted and word.start in (None, *starts):
            return offer
    listed = ", ".join(
        f"{offer.profile_id} ({instance.profile.split(offer.slices)} at "
        f"{', '.join(str(place.start) for place in offer.placements)})"
        for offer in offers
    )
    raise MigManagerError(
        Reason.UNSUPPORTED_PROFILE,
        f"GPU {state.gpu.index}: {instance_words(instance)} offers no compute instance {word.text}; it offers {listed}",
    )


def _tell(before: Sequence[GpuState], after: Sequence[GpuState], output: Listing, *, inside: bool) -> None:
    """List what is new."""
    from dataclasses import replace

    from mig_manager.cli.output import write, write_listing
    from mig_manager.cli.tables import compute_table, instance_document, instance_table

    new = []
    for old, now in zip(before, after, strict=True):
        known = {(item.id, compute.id) for item in old.instances for compute in item.compute}
        places = {item.placement for item in old.instances}
        fresh = [
            replace(item, compute=tuple(c for c in item.compute if (item.id, c.id) not in known))
            if item.placement in places
            else item
            for item in now.instances
        ]
        new.append(replace(now, instances=tuple(i for i in fresh if i.compute or i.placement not in places)))
    if output is Listing.TEXT:
        table = compute_table if inside else instance_table
        write("".join(f"{line}\n" for line in table(new)))
    else:
        write_listing(instance_document(new), output)
