"""GPUs to plan for: real ones from the catalogue, small synthetic ones, and states and targets on them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mig_manager.layouts.layout import GpuIdentity, GpuTarget, NodeTarget, Source
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.catalogue import find_model
from mig_manager.planning.geometry import ComputeProfile, Engines, GpuGeometry, InstanceProfile, Placement
from mig_manager.planning.plan import GpuPlan, NodePlan
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

_NO_ENGINES = Engines(copy=1, decoder=0, encoder=0, jpeg=0, ofa=0)
_IDENTITY = GpuIdentity(0, "GPU-0", "00000000:07:00.0", "Test GPU", 0x123410DE, 0, True)


def _profile(
    name: str,
    profile_id: int,
    size: int,
    starts: Sequence[int],
    most: int,
    compute: Sequence[tuple[int, Sequence[int]]],
    engines: Engines = _NO_ENGINES,
) -> InstanceProfile:
    return InstanceProfile(
        name=MigProfile.parse(name),
        profile_id=profile_id,
        enum=profile_id,
        memory_mb=size * 1024,
        multiprocessors=None,
        max_instances=most,
        placements=tuple(Placement(start, size) for start in starts),
        engines=engines,
        compute=tuple(
            ComputeProfile(
                slices,
                slices,
                len(places) - (name == "3g.3gb" and slices == 1),
                tuple(Placement(start, slices) for start in places),
            )
            for slices, places in compute
        ),
    )


def _model(name: str) -> GpuGeometry:
    geometry = find_model(name).geometry
    assert geometry is not None
    return geometry


A30 = _model("A30")
A100 = _model("A100-SXM4-80GB")
H100 = _model("H100-80GB-HBM3")
RTX = _model("RTX PRO 6000 Blackwell Server Edition")

FOUR = GpuGeometry(
    "Four",
    4,
    4,
    4096,
    (
        _profile("1g.1gb", 14, 1, (0, 1, 2, 3), 3, [(1, (0,))]),
        _profile("2g.2gb", 5, 2, (0, 1, 2), 2, [(1, (0, 1)), (2, (0,))]),
        _profile("3g.3gb", 9, 3, (1,), 1, [(1, (0, 1, 2)), (2, (0,)), (3, (0,))]),
        _profile("4g.4gb", 0, 4, (0,), 1, [(1, (0, 1, 2, 3)), (2, (0, 2)), (4, (0,))]),
    ),
    "device",
)
"""Four slices, overlapping places for one profile, fewer 1g than slices, fewer 1c.3g than places for them."""

ODD = GpuGeometry(
    "Odd",
    3,
    3,
    3072,
    (
        _profile("1g.1gb", 14, 1, (0, 2), 2, [(1, (0,))], Engines(1, 1, None, 0, 0)),
        _profile("1g.1gb+me", 15, 1, (0, 1, 2), 3, [(1, (0,))], Engines(1, 1, None, 1, 0)),
        _profile("1g.2gb", 16, 2, (1,), 1, [(1, (0,))], Engines(1, 1, None, 0, 0)),
        _profile("2g.2gb", 5, 2, (0, 1), 1, [(1, (0, 1)), (2, (0,))], Engines(1, 2, None, 0, 0)),
        _profile("3g.3gb", 0, 3, (0,), 1, [(1, (0, 1, 2)), (2, (1,)), (3, (0,))], Engines(1, 3, None, 1, 0)),
    ),
    "device",
)
"""Three slices, a slice that plain 1g cannot take, engines that forbid what placements allow."""


def instance(
    geometry: GpuGeometry,
    name: str,
    start: int,
    compute: Iterable[tuple[int, int | None]] | None = None,
    *,
    busy: bool = False,
    id: int | None = None,
    busy_compute: Iterable[int] = (),
) -> GpuInstance:
    """A GPU instance that is there; `compute` lists slices and start, None for a start that is not known."""
    profile = next(profile for profile in geometry.profiles if str(profile.name) == name)
    place = next(placement for placement in profile.placements if placement.start == start)
    if compute is None:
        compute = [(profile.name.gpu_slices, 0)]
    return GpuInstance(
        id=id,
        profile=profile.name,
        profile_id=profile.profile_id,
        placement=place,
        compute=tuple(
            ComputeInstance(
                number,
                slices,
                None if at is None else Placement(at, slices),
                busy=number in set(busy_compute),
            )
            for number, (slices, at) in enumerate(compute)
        ),
        busy=busy,
    )


def state(
    geometry: GpuGeometry | None, instances: Iterable[GpuInstance] = (), *, current: bool = True
) -> GpuState:
    """A GPU in MIG mode that needs a reset to change it."""
    return GpuState(
        gpu=_IDENTITY,
        mig_current=current,
        mig_pending=current,
        mode_change_needs_reset=True,
        geometry=geometry,
        instances=tuple(sorted(instances, key=lambda one: one.placement)),
    )


def target(devices: Iterable[str | MigProfile], *, enabled: bool = True) -> GpuTarget:
    """A target by device names."""
    profiles = [MigProfile.parse(device) if isinstance(device, str) else device for device in devices]
    return GpuTarget(_IDENTITY, enabled, tuple(sorted(profiles)), Source("config.yaml", 12))


def node(one: GpuTarget) -> NodeTarget:
    return NodeTarget("test", (one,), ())


def inventory(*states: GpuState) -> Inventory:
    return Inventory("580.65", states)


def node_plan(plan: GpuPlan) -> NodePlan:
    return NodePlan("test", (plan,), ())
