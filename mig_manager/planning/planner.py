"""From a target and what is there to a plan, proven before anything is touched."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.layout import GpuTarget, NodeTarget
from mig_manager.planning.explain import explain, gpu_words
from mig_manager.planning.geometry import GpuGeometry, Placement
from mig_manager.planning.placement import Device, Placed, Search
from mig_manager.planning.plan import GpuPlan, KeptInstance, ModeChange, NewInstance, NodePlan
from mig_manager.planning.profiles import resolve_profile
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory


def plan_node(target: NodeTarget, inventory: Inventory) -> NodePlan:
    """Plan every selected GPU.

    Raises:
        MigManagerError: as `plan_gpu`; INVALID_LAYOUT also where a selected GPU is not in the inventory.
    """
    states = {state.gpu.uuid: state for state in inventory.gpus}
    plans = []
    for wanted in target.gpus:
        state = states.get(wanted.gpu.uuid)
        if state is None:
            raise _invalid(wanted, f"{gpu_words(wanted.gpu)} is not on this node any more")
        plans.append(plan_gpu(wanted, state))
    return NodePlan(target.layout, tuple(plans), target.untouched)


def plan_gpu(target: GpuTarget, state: GpuState) -> GpuPlan:
    """The plan that keeps the most busy instances, then the most instances, then creates the fewest.

    Raises:
        MigManagerError: UNSUPPORTED_PROFILE, the GPU has no such profile; IMPOSSIBLE_LAYOUT, proven that the
            devices cannot stand together on this GPU; INVALID_LAYOUT, MIG is wanted on a GPU without it.
    """
    present = _present(state)
    if not target.mig_enabled:
        return GpuPlan(state.gpu, mode_change(state, False), (), present, ())
    search = _search(target, state, present)
    solution = next(search.solutions(), None)
    if solution is None:
        message = explain(search, _geometry(target, state), present)
        raise MigManagerError(
            Reason.IMPOSSIBLE_LAYOUT, f"{_where(target)}{gpu_words(state.gpu)} can't hold {message}"
        )
    return _plan(state, present, solution)


def alternatives(
    target: GpuTarget, state: GpuState, refused: Collection[tuple[int, Placement]], floor: GpuPlan
) -> Iterator[GpuPlan]:
    """Other plans for a GPU that refused a placement which its geometry allows.

    The best first, in the order of the objective; lazy, finite, none twice, and never the layout that `floor`
    ends in. Each keeps at least every GPU instance and compute instance that `floor` keeps; what `floor`
    created may go again.

    Args:
        target: as planned.
        state: the GPU as it is now; what `floor` has destroyed and created so far may show.
        refused: profile id and placement of what the GPU refuses to create.
        floor: the plan that was refused.
    """
    if not target.mig_enabled:
        return
    present = _present(state)
    pinned: dict[Placement, frozenset[int]] = {}
    for kept in floor.keep:
        stays = _pinned(kept, present)
        if stays is None:
            return
        pinned[kept.instance.placement] = stays
    search = _search(target, state, present, floor=pinned, refused=refused)
    refused_layout = _layout(floor)
    for solution in search.solutions():
        plan = _plan(state, present, solution)
        if _layout(plan) != refused_layout:
            yield plan


def mode_change(state: GpuState, target: bool) -> ModeChange:
    """The change of the MIG mode; it needs a reset only where the current mode is not the wanted one."""
    reset = state.mode_change_needs_reset and state.mig_current != target
    return ModeChange(state.mig_current, state.mig_pending, target, reset)


def _present(state: GpuState) -> tuple[GpuInstance, ...]:
    # Without MIG mode there are no instances, whatever a file says that somebody wrote by hand.
    return state.instances if state.mig_current else ()


def _search(
    target: GpuTarget,
    state: GpuState,
    present: Sequence[GpuInstance],
    *,
    floor: Mapping[Placement, frozenset[int]] | None = None,
    refused: Collection[tuple[int, Placement]] = (),
) -> Search:
    geometry = _geometry(target, state)
    wanted: dict[tuple[int, int], tuple[Device, int]] = {}
    for name, number in Counter(target.devices).items():
        try:
            profile = resolve_profile(geometry, name)
        except MigManagerError as error:
            raise MigManagerError(
                error.reason, f"{_where(target)}GPU {state.gpu.index}: {error.message}"
            ) from error
        # Two accepted names of one profile, such as 7g.79gb and 7g.80gb, are one device.
        key = profile.profile_id, name.compute_slices
        device, others = wanted.get(key, (Device(profile, name.compute_slices), 0))
        wanted[key] = device, others + number
    return Search(geometry, list(wanted.values()), present, floor=floor, refused=refused)


def _geometry(target: GpuTarget, state: GpuState) -> GpuGeometry:
    if state.geometry is not None:
        return state.geometry
    gpu = state.gpu
    if not gpu.mig_capable:
        raise _invalid(target, f"{gpu_words(gpu)} has no MIG, and the layout turns MIG on there")
    if target.devices:
        raise _invalid(
            target,
            f"{gpu_words(gpu)}: its driver lists no profiles while MIG is off, and the model is not in the "
            "catalogue, so the layout cannot be proven; enable MIG with no devices first",
        )
    return GpuGeometry(gpu.model, 0, 0, 0, (), "device")


def _plan(state: GpuState, present: Sequence[GpuInstance], solution: Sequence[Placed]) -> GpuPlan:
    keep = []
    create = []
    for placed in sorted(solution, key=lambda placed: placed.placement):
        change = placed.compute
        if placed.instance is not None:
            keep.append(KeptInstance(placed.instance, change.destroy, change.create))
        else:
            profile = placed.profile
            create.append(NewInstance(profile.name, profile.profile_id, placed.placement, change.create))
    stays = {placed.placement for placed in solution if placed.instance is not None}
    destroy = tuple(instance for instance in present if instance.placement not in stays)
    return GpuPlan(state.gpu, mode_change(state, True), tuple(keep), destroy, tuple(create))


def _pinned(kept: KeptInstance, present: Sequence[GpuInstance]) -> frozenset[int] | None:
    """The positions of the compute instances that a kept instance keeps; None where any of it is gone."""
    wanted = kept.instance
    for instance in present:
        if instance.placement == wanted.placement and instance.profile_id == wanted.profile_id:
            break
    else:
        return None
    positions: set[int] = set()
    for stays in kept.stays:
        for position, compute in enumerate(instance.compute):
            if position not in positions and _same(stays, compute):
                positions.add(position)
                break
        else:
            return None
    return frozenset(positions)


def _same(one: ComputeInstance, other: ComputeInstance) -> bool:
    if one.id is not None and other.id is not None:
        return one.id == other.id
    return one.slices == other.slices and one.placement == other.placement


def _layout(plan: GpuPlan) -> frozenset[tuple[Placement, int, tuple[int, ...]]]:
    """What a GPU looks like after a plan: instances with the slices of their compute instances."""
    layout = []
    for entry in plan.keep:
        slices = [*(one.slices for one in entry.stays), *(one.slices for one in entry.create)]
        layout.append((entry.instance.placement, entry.instance.profile_id, tuple(sorted(slices))))
    for new in plan.create:
        slices = [one.slices for one in new.compute]
        layout.append((new.placement, new.profile_id, tuple(sorted(slices))))
    return frozenset(layout)


def _invalid(target: GpuTarget, message: str) -> MigManagerError:
    return MigManagerError(Reason.INVALID_LAYOUT, f"{_where(target)}{message}")


def _where(target: GpuTarget) -> str:
    return f"{target.source}: " if target.source else ""
