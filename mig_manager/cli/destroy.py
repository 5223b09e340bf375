"""`mig-manager destroy`: instances named by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.change import carried_through, timed
from mig_manager.cli.options import DriverRoot, GpuList, Listing, ListingOption, Simulate, SimulateState

if TYPE_CHECKING:
    from mig_manager.cli.selection import ProfileWord
    from mig_manager.gpu.worker import GpuWorker
    from mig_manager.planning.plan import GpuPlan
    from mig_manager.planning.state import GpuInstance, GpuState

_EXAMPLES = """\b
Examples:
  mig-manager destroy --gi 3,5 --gpu 0       (nvidia-smi mig -i 0 -gi 3,5 -dci, then -dgi)
  mig-manager destroy 1g.10gb,3g.40gb:4 --gpu 0
  mig-manager destroy --gi 2 --ci 0 --gpu 0  (nvidia-smi mig -i 0 -gi 2 -ci 0 -dci)
  mig-manager destroy --all --gpu all
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("destroy", epilog=_EXAMPLES, short_help="Destroy single instances.")(destroy)


def destroy(
    profiles: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROFILES]...",
            help="Names of profiles: all instances of each; with :N, the one that starts at that memory slice.",
        ),
    ] = None,
    gpu: GpuList = None,
    gi: Annotated[
        str | None,
        typer.Option("--gi", metavar="IDS", help="IDs of GPU instances, with commas between several."),
    ] = None,
    ci: Annotated[
        str | None,
        typer.Option(
            "--ci", metavar="IDS", help="Only these compute instances of the one GPU instance of --gi."
        ),
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All instances of the GPUs.")] = False,
    output: ListingOption = Listing.TEXT,
    simulate: Simulate = None,
    simulate_state: SimulateState = None,
    driver_root: DriverRoot = None,
) -> None:
    """Destroy GPU instances with the compute instances in them, or single compute instances.

    Instances in use are refused before anything is touched, with who uses them: the driver destroys none of
    those, so there is no option to force it. All or none, as with `create`. JSON and YAML list what is gone, in
    the shape of `instances`.
    """
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import write, write_listing
    from mig_manager.cli.selection import gpus_to_change
    from mig_manager.cli.tables import instance_document
    from mig_manager.gpu.repartition import carry_out
    from mig_manager.planning.plan import NodePlan

    choice = _choice(profiles or [], gi, ci, everything)
    with hardware(
        simulate=simulate, simulate_state=simulate_state, driver_root=driver_root, change=True
    ) as gpus:
        before = gpus.worker.inventory()
        states = gpus_to_change(gpu, before)
        plans = [choice.plan(state) for state in states]
        _refuse_busy(plans, gpus.worker)
        indices = {state.gpu.index for state in states}
        untouched = tuple(state.gpu.index for state in before.gpus if state.gpu.index not in indices)
        plan = NodePlan("destroy", tuple(plans), untouched)
        if plan.changes:
            with carried_through():
                timed(
                    gpus.worker,
                    lambda: carry_out(gpus.worker, plan, before, gpus.reset),
                    quiet=output is not Listing.TEXT,
                )
    if output is Listing.TEXT:
        lines = [line for item in plans for line in _lines(item)] or ["nothing to destroy"]
        write("".join(f"{line}\n" for line in lines))
    else:
        gone = [_gone(item, state) for item, state in zip(plans, states, strict=True)]
        write_listing(instance_document(gone), output)


@dataclass(frozen=True, slots=True)
class _Choice:
    """What the user wants to be gone; exactly one of the three, `ci` only beside one `gi`."""

    names: tuple[ProfileWord, ...]
    gi: tuple[int, ...]
    ci: tuple[int, ...]
    everything: bool

    def plan(self, state: GpuState) -> GpuPlan:
        """What that means on a GPU."""
        from mig_manager.cli.selection import find_compute, find_instance
        from mig_manager.planning.hand import plan_destroy

        if self.everything:
            return plan_destroy(state, state.instances)
        if self.ci:
            instance = find_instance(state, self.gi[0])
            return plan_destroy(state, (), [find_compute(state, instance, each) for each in self.ci])
        if self.gi:
            return plan_destroy(state, [find_instance(state, each) for each in self.gi])
        return plan_destroy(state, [gone for word in self.names for gone in _named(word, state)])


def _choice(profiles: Sequence[str], gi: str | None, ci: str | None, everything: bool) -> _Choice:
    from mig_manager.cli.errors import InputError
    from mig_manager.cli.selection import parse_ids, parse_profiles

    if bool(profiles) + (gi is not None) + everything != 1:
        raise InputError("say what to destroy in one way: --gi with IDs, names of profiles, or --all")
    ids = parse_ids(gi, "--gi") if gi is not None else ()
    if ci is not None and len(ids) != 1:
        raise InputError("--ci names compute instances of one GPU instance; --gi must name that one")
    words = parse_profiles(profiles, example="1g.10gb or 3g.40gb:4")
    for word in words:
        if isinstance(word.wanted, int):
            raise InputError(
                f"{word.text} could be the ID of a profile or of a GPU instance: write --gi {word.wanted}, or the "
                "name of the profile"
            )
        if not word.wanted.whole:
            raise InputError(f"{word.text} is a compute instance; --gi ID --ci ID names one")
    return _Choice(words, ids, parse_ids(ci, "--ci") if ci is not None else (), everything)


def _named(word: ProfileWord, state: GpuState) -> list[GpuInstance]:
    from mig_manager.cli.errors import InputError
    from mig_manager.cli.selection import held, resolve_word

    profile, _ = resolve_word(word, state)
    found = [
        instance
        for instance in state.instances
        if instance.profile_id == profile.profile_id and word.start in (None, instance.placement.start)
    ]
    if not found:
        raise InputError(f"GPU {state.gpu.index} has no {word.text}; {held(state)}")
    return found


def _refuse_busy(plans: Sequence[GpuPlan], worker: GpuWorker) -> None:
    """Raises GPU_IN_USE where somebody uses any of what is to go."""
    from mig_manager.errors import MigManagerError, Reason
    from mig_manager.planning.hand import instance_words
    from mig_manager.planning.placement import instance_busy

    busy = [(plan, instance, None) for plan in plans for instance in plan.destroy if instance_busy(instance)]
    inside = [
        (plan, kept.instance, compute)
        for plan in plans
        for kept in plan.keep
        for compute in kept.destroy
        if compute.busy
    ]
    if not busy and not inside:
        return
    users = {usage.gpu.uuid: usage.processes for usage in worker.usage()}
    lines = []
    for plan, instance, compute in (*busy, *inside):
        what = instance_words(instance)
        if compute is not None:
            what = f"compute instance {compute.id} of {what}"
        pids = sorted(
            {
                process.pid
                for process in users.get(plan.gpu.uuid, ())
                if process.gpu_instance == instance.id
                and (compute is None or process.compute_instance == compute.id)
            }
        )
        by = f" by {', '.join(f'pid {pid}' for pid in pids)}" if pids else ""
        lines.append(f"GPU {plan.gpu.index}: {what} is in use{by}.")
    raise MigManagerError(Reason.GPU_IN_USE, "\n".join([*lines, "Nothing was changed."]))


def _lines(plan: GpuPlan) -> Iterator[str]:
    from mig_manager.planning.hand import instance_words

    for gone in plan.destroy:
        yield f"GPU {plan.gpu.index}: destroyed {instance_words(gone)}"
    for kept in plan.keep:
        for compute in kept.destroy:
            inside = instance_words(kept.instance)
            yield f"GPU {plan.gpu.index}: destroyed compute instance {compute.id} of {inside}"


def _gone(plan: GpuPlan, state: GpuState) -> GpuState:
    """The GPU with what is gone alone; a GPU instance that stays has the compute instances that went."""
    inside = (replace(kept.instance, compute=kept.destroy) for kept in plan.keep if kept.destroy)
    return replace(state, instances=tuple(sorted((*plan.destroy, *inside), key=lambda gone: gone.placement)))
