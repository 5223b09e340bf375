"""Who uses what, and who would lose it: told as far as the API tells, and never more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mig_manager.cli.choice import all_layouts, choose
from mig_manager.cli.kubectl.departures import Certainty, at_least, departures, lost_devices
from mig_manager.cli.kubectl.use import Device, NodeUse, Tenant, Use, devices_of, node_use, with_use
from mig_manager.cluster.claims import SliceDevice
from mig_manager.planning.state import Inventory
from tests.cli.kubectl.cluster import inventory_of, resources_of, with_layout

SMALL, LARGE = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
LAYOUTS = ["all-balanced", "all-1g.10gb", "all-2g.20gb", "all-3g.40gb", "all-disabled", "all-enabled"]


def pod(name: str, *, phase: str = "Running", **counts: int) -> Tenant:
    """`small=2` asks for two of the smallest MIG devices."""
    names = {"small": SMALL, "large": LARGE, "gpu": "nvidia.com/gpu", "shared": f"{SMALL}.shared"}
    limits = {names[key]: str(count) for key, count in counts.items()}
    return limited(name, limits, phase)


def limited(name: str, limits: Mapping[str, str], phase: str = "Running") -> Tenant:
    return Tenant.from_json(
        {
            "metadata": {"name": name, "namespace": "ml", "uid": name},
            "spec": {"containers": [{"name": "main", "resources": {"limits": limits}}]},
            "status": {"phase": phase},
        }
    )


def balanced() -> Inventory:
    return with_layout("all-balanced", inventory_of("1xA100-SXM4-80GB"))


def told(use: NodeUse, inventory: Inventory, strategy: str = "mixed") -> dict[str, list[str]]:
    """By resource, in the order of the devices: `used a`, `free`, `unknown (a b)`."""
    found: dict[str, list[str]] = {}
    for state in inventory.gpus:
        for device in devices_of(state, strategy):
            known = use.of(device)
            names = " ".join(each.name for each in known.pods)
            perhaps = " ".join(each.name for each in known.possible)
            words = " ".join(filter(None, [known.use, names, perhaps and f"({perhaps})"]))
            found.setdefault(device.resource.rpartition("/")[2], []).append(words)
    return found


@pytest.mark.parametrize(
    ("pods", "small", "large"),
    [
        ([], ["free", "free"], ["free"]),
        ([pod("a", small=1)], ["unknown (a)", "unknown (a)"], ["free"]),
        ([pod("a", small=2)], ["used a", "used a"], ["free"]),
        ([pod("a", small=1), pod("b", small=1)], ["used (a b)", "used (a b)"], ["free"]),
        ([pod("a", large=1)], ["free", "free"], ["used a"]),
        ([pod("a", phase="Succeeded", large=1)], ["free", "free"], ["free"]),
    ],
)
def test_it_is_exact_where_all_or_none_of_a_type_are_in_use(
    pods: list[Tenant], small: list[str], large: list[str]
) -> None:
    inventory = balanced()
    use = node_use(inventory, "mixed", resources_of(inventory, "mixed"), pods)
    assert told(use, inventory) == {"mig-1g.10gb": small, "mig-2g.20gb": ["free"], "mig-3g.40gb": large}
    assert use.strays == ()


def test_devices_that_are_shared_are_in_use_for_certain_only_when_all_shares_are() -> None:
    inventory = balanced()
    offered = {f"{SMALL}.shared": 4}
    some = node_use(inventory, "mixed", offered, [pod("a", shared=2)])
    assert told(some, inventory)["mig-1g.10gb"] == ["unknown (a)"] * 2
    all_of_them = node_use(inventory, "mixed", offered, [pod("a", shared=4)])
    assert told(all_of_them, inventory)["mig-1g.10gb"] == ["used a"] * 2


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [("single", ["unknown (a)"] * 7), ("none", ["used a"])],
)
def test_the_strategy_says_what_a_gpu_is(strategy: str, expected: list[str]) -> None:
    inventory = with_layout("all-1g.10gb", inventory_of("1xA100-SXM4-80GB"))
    use = node_use(inventory, strategy, resources_of(inventory, strategy), [pod("a", gpu=1)])
    assert told(use, inventory, strategy) == {"gpu": expected}


def test_a_claim_names_its_device_by_gpu_and_place() -> None:
    inventory = balanced()
    gpu = inventory.gpus[0]
    device = SliceDevice("node/gpu-0-mig-1", "MIG-x", gpu.gpu.uuid.lower(), frozenset({3}))
    pods = [pod("a"), pod("b"), pod("c")]
    claims = {"a": ["node/gpu-0-mig-1"], "b": ["node/gone"], "c": ["claim that-one"]}
    use = node_use(inventory, "mixed", {}, pods, claims, {device.name: device})
    assert told(use, inventory)["mig-1g.10gb"] == ["free", "used a"]
    assert [(str(each), what) for each, what in use.strays] == [
        ("ml/b", "node/gone"),
        ("ml/c", "claim that-one"),
    ]
    busy = [one.placement.start for one in with_use(inventory, "mixed", use).gpus[0].instances if one.busy]
    assert busy == [3]


def test_a_pod_that_holds_what_no_gpu_offers_is_named() -> None:
    inventory = with_layout("all-disabled", inventory_of("1xA100-SXM4-80GB"))
    use = node_use(inventory, "mixed", {"nvidia.com/gpu": 1}, [pod("a", small=1)])
    assert [(str(each), what) for each, what in use.strays] == [("ml/a", SMALL)]


@dataclass(frozen=True)
class Truth:
    """What only the kubelet knows: who holds which devices."""

    inventory: Inventory
    layout: str
    held: Mapping[str, Sequence[Device]]

    @property
    def pods(self) -> list[Tenant]:
        counts = {name: Counter(one.resource for one in devices) for name, devices in self.held.items()}
        return [limited(name, {key: str(n) for key, n in held.items()}) for name, held in counts.items()]


@st.composite
def truths(draw: st.DrawFn) -> Truth:
    gpus = draw(st.sampled_from(["1xA100-SXM4-80GB", "2xA100-SXM4-80GB", "1xA30,1xH100-80GB-HBM3,1xT4"]))
    before = draw(st.sampled_from([name for name in LAYOUTS if "A30" not in gpus or name[4:5].isalpha()]))
    inventory = with_layout(before, inventory_of(gpus))
    devices = [device for state in inventory.gpus for device in devices_of(state, "mixed")]
    taken = draw(st.lists(st.sampled_from(devices), unique=True)) if devices else []
    owners = draw(st.lists(st.sampled_from("abc"), min_size=len(taken), max_size=len(taken)))
    held: dict[str, list[Device]] = {}
    for owner, device in zip(owners, taken, strict=True):
        held.setdefault(owner, []).append(device)
    after = draw(st.sampled_from([name for name in LAYOUTS if "A30" not in gpus or name[4:5].isalpha()]))
    return Truth(inventory, after, held)


@settings(max_examples=80)
@given(truths())
def test_who_loses_a_device_is_named_and_who_goes_for_certain_loses_one(truth: Truth) -> None:
    offered = resources_of(truth.inventory, "mixed")
    use = node_use(truth.inventory, "mixed", offered, truth.pods)
    inventory = with_use(truth.inventory, "mixed", use)
    plan = choose(all_layouts(None, inventory), truth.layout, inventory).plan
    lost = lost_devices(plan, inventory, "mixed")
    losing = {name for name, devices in truth.held.items() if lost.intersection(devices)}
    found = departures(plan, inventory, "mixed", use, [])
    certain = {each.pod.name for each in found if each.certainty is Certainty.CERTAIN}
    assert certain <= losing <= {each.pod.name for each in found}
    assert at_least(plan, inventory, "mixed", use) <= sum(
        len(lost.intersection(d)) for d in truth.held.values()
    )
    everything = {device for devices in truth.held.values() for device in devices}
    for state in inventory.gpus:
        for device in devices_of(state, "mixed"):
            known = use.of(device)
            assert known.use is not Use.FREE or device not in everything
            assert known.use is not Use.USED or device in everything
            owners = {name for name, devices in truth.held.items() if device in devices}
            names = {each.name for each in known.pods}
            assert names <= owners <= names | {each.name for each in known.possible}
