"""Each cause of a Pending pod is named, from what the API shows and no more."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from mig_manager.cli.kubectl.explaining.diagnosis import diagnose
from mig_manager.cli.kubectl.explaining.scene import Cause, Claim, Place, Scene
from mig_manager.cluster.objects import JsonObject
from tests.cli.kubectl.scenes import MIG, place, pod

SMALL = f"{MIG}1g.10gb"
MEDIA = f"{MIG}1g.10gb.me"
LARGE = f"{MIG}3g.40gb"
GPU = "nvidia.com/gpu"
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "message": "0/1 nodes are available"}]


@dataclass(frozen=True)
class Case:
    pod: JsonObject
    places: tuple[Place, ...] | None = (place(),)
    causes: tuple[Cause, ...] = ()
    """All that are found, in this order."""
    says: tuple[str, ...] = ()
    """Words of the findings and of what to do."""
    serves: tuple[str, str] | None = None
    """The Node and the layout that are proposed first."""
    more: dict[str, Any] = field(default_factory=dict)
    """Of the Scene."""


def claimed(found: JsonObject | None = None, **more: Any) -> dict[str, Any]:
    claim = Claim("gpu", more.pop("name", "p-gpu"), found=found, **more)
    return {"claims": (claim,)}


FULL = {SMALL: {f"ml/job-{number}": 1 for number in range(7)}}
TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}
NOT_READY = {"key": "mig-manager/not-ready", "effect": "NoSchedule"}
ZONE_B = {"key": "zone", "operator": "In", "values": ["b"]}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
IN_ZONE_B = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [ZONE_B]}]}}}
REQUEST = {
    "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "mig.nvidia.com"}}]}}
}
ALLOCATED = {"allocation": {"devices": {}}, "reservedFor": [{"name": "other", "uid": "o"}]}

CASES = {
    "running": Case(
        pod({SMALL: 1}, nodeName="gpu-1", status={"phase": "Running"}),
        causes=(Cause.NOT_PENDING,),
        says=("it is Running on gpu-1",),
    ),
    "being deleted": Case(
        pod({SMALL: 1}, meta={"deletionTimestamp": "2026-03-01T12:00:00Z"}),
        causes=(Cause.NOT_PENDING,),
        says=("is being deleted",),
    ),
    "refused by the kubelet": Case(
        pod({SMALL: 1}, nodeName="gpu-1", status={"phase": "Failed", "reason": "UnexpectedAdmissionError"}),
        causes=(Cause.NOT_PENDING,),
        says=("was refused by the kubelet of gpu-1", "create it anew"),
    ),
    "bound, and its image is pulled": Case(
        pod({SMALL: 1}, nodeName="gpu-1"), causes=(Cause.ASSIGNED,), says=("does not wait for a GPU",)
    ),
    "no GPU wanted": Case(pod(), causes=(Cause.NO_GPU_WANTED,), says=("asks for no GPU",)),
    "scheduling gate": Case(
        pod({SMALL: 1}, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
        causes=(Cause.GATED, Cause.ROOM),
        says=("kueue.x-k8s.io/admission",),
    ),
    "Nodes may not be read": Case(pod({SMALL: 1}), None, (Cause.NODES_UNREADABLE,)),
    "no GPU node": Case(pod({SMALL: 1}), (), (Cause.NO_GPU_NODE,)),
    "the plain profile wanted, nodes have the one with media engines": Case(
        pod({SMALL: 1}),
        (place(layout="all-1g.10gb.me"),),
        (Cause.NOT_ADVERTISED, Cause.OTHER_VARIANT),
        (f"gpu-1 advertises {MEDIA} (1 free)", f"ask for {MEDIA} in the pod's resources"),
        ("gpu-1", "all-balanced"),
    ),
    "a profile of another memory size": Case(
        pod({f"{MIG}2g.10gb": 1}),
        (place(layout="all-2g.20gb"),),
        (Cause.NOT_ADVERTISED, Cause.OTHER_MEMORY, Cause.UNSUPPORTED),
        (f"ask for {MIG}2g.20gb", "NVIDIA A100-SXM4-80GB has no profile 2g.10gb"),
    ),
    "a profile that no GPU here has": Case(
        pod({f"{MIG}1g.24gb": 1}),
        (place(layout="all-disabled"),),
        (Cause.NOT_ADVERTISED, Cause.UNSUPPORTED),
        ("No layout makes it on gpu-1",),
    ),
    "an old name of a profile": Case(
        pod({f"{MIG}7g.79gb": 1}),
        (place(layout="all-7g.80gb"),),
        (Cause.NOT_ADVERTISED, Cause.OTHER_MEMORY, Cause.OTHER_MEMORY),
        (f"ask for {MIG}7g.80gb instead of {MIG}7g.79gb",),
    ),
    "no profile at all": Case(
        pod({f"{MIG}1g10gb": 1}), causes=(Cause.NOT_ADVERTISED, Cause.NO_PROFILE), says=(f"ask for {SMALL}",)
    ),
    "devices renamed because they are shared": Case(
        pod({SMALL: 1}),
        (place(offers_only={f"{SMALL}.shared": 28}),),
        (Cause.NOT_ADVERTISED, Cause.SHARED_NAME),
        (f"ask for {SMALL}.shared", "(28 free)"),
    ),
    "shared devices wanted where nothing is shared": Case(
        pod({f"{SMALL}.shared": 1}),
        causes=(Cause.NOT_ADVERTISED, Cause.SHARED_NAME),
        says=("does not share these devices", f"ask for {SMALL} in", "(7 free)"),
    ),
    "strategy single": Case(
        pod({SMALL: 1}),
        (place(strategy="single", labels={"nvidia.com/gpu.product": "A100-SXM4-80GB-MIG-1g.10gb"}),),
        (Cause.NOT_ADVERTISED, Cause.STRATEGY),
        (
            "has the MIG strategy 'single': it holds 7 x 1g.10gb, but every MIG device",
            f"ask for {GPU}, with the nodeSelector nvidia.com/gpu.product: A100-SXM4-80GB-MIG-1g.10gb",
        ),
    ),
    "a node that it must not go to has it": Case(
        pod({SMALL: 1}, nodeSelector={"pool": "a"}),
        (place(labels={"pool": "b"}), place("gpu-2", labels={"pool": "a"}, strategy="single")),
        (Cause.NOT_ADVERTISED, Cause.STRATEGY, Cause.EXCLUDED),
        (
            "No node that the pod can go to (gpu-2) advertises",
            "The device plugin of gpu-2 has the MIG strategy",
        ),
    ),
    "strategy none": Case(
        pod({SMALL: 1}),
        (place(strategy="none"),),
        (Cause.NOT_ADVERTISED, Cause.STRATEGY),
        ("has the MIG strategy 'none'",),
    ),
    "a whole GPU wanted, all are cut": Case(
        pod({GPU: 1}),
        causes=(Cause.NOT_ADVERTISED, Cause.NOT_ADVERTISED),
        says=("No whole GPU is left on gpu-1",),
        serves=("gpu-1", "all-disabled"),
    ),
    "more than any node has": Case(
        pod({SMALL: 9}), causes=(Cause.MORE_THAN_A_NODE,), says=("no node has more than 7",)
    ),
    "all in use": Case(
        pod({SMALL: 1}),
        (place(users=FULL),),
        (Cause.IN_USE,),
        (f"gpu-1 advertises 7 {SMALL}, and all are in use: ml/job-0, ml/job-1",),
    ),
    "who uses them may not be read": Case(
        pod({SMALL: 1}), causes=(Cause.IN_USE,), says=("you may not list pods",), more={"usage_known": False}
    ),
    "cordoned by a person": Case(
        pod({SMALL: 1}), (place(cordoned=True),), (Cause.CORDONED,), ("kubectl uncordon gpu-1",)
    ),
    "cordoned by a run": Case(
        pod({SMALL: 1}),
        (place(cordoned=True, runs_to="all-2g.20gb"),),
        (Cause.IN_A_RUN,),
        ("changes its GPUs to all-2g.20gb (phase Draining)", "kubectl mig status gpu-1 -w"),
    ),
    "a run is under way to what it wants": Case(
        pod({LARGE: 1}),
        (place(cordoned=True, runs_to="all-3g.40gb"),),
        (Cause.NOT_ADVERTISED, Cause.IN_A_RUN, Cause.IN_A_RUN),
        ("gpu-1 is being changed to all-3g.40gb (phase Draining), which has it",),
    ),
    "the start-up taint": Case(
        pod({SMALL: 1}), (place(taints=[NOT_READY]),), (Cause.TAINTED,), ("the start-up taint",)
    ),
    "another taint": Case(
        pod({SMALL: 1}), (place(taints=[TAINT]),), (Cause.TAINTED,), ("the taint team=a:NoSchedule",)
    ),
    "a taint that it tolerates": Case(
        pod({SMALL: 1}, tolerations=[{"key": "team", "operator": "Exists"}]),
        (place(taints=[TAINT]),),
        (Cause.ROOM,),
        ("gpu-1 has room for 1 nvidia.com/mig-1g.10gb",),
    ),
    "a node selector": Case(
        pod({SMALL: 1}, nodeSelector={"pool": "a"}),
        (place(labels={"pool": "b"}), place("gpu-2", labels={"pool": "a"}, users=FULL)),
        (Cause.IN_USE, Cause.EXCLUDED),
        ("gpu-1 does not meet the pod's nodeSelector pool=a (it has b)",),
    ),
    "node affinity": Case(
        pod({SMALL: 1}, affinity=IN_ZONE_B),
        (place(labels={"zone": "a"}),),
        (Cause.EXCLUDED,),
        ("node affinity zone In (b)",),
    ),
    "a claim that is not there": Case(
        pod(), causes=(Cause.CLAIM_MISSING,), says=("no ResourceClaim p-gpu in ml",), more=claimed()
    ),
    "a template that is not there": Case(
        pod(),
        causes=(Cause.CLAIM_MISSING,),
        says=("no ResourceClaimTemplate one-gpu in ml",),
        more=claimed(name=None, template="one-gpu", template_exists=False),
    ),
    "no DRA driver": Case(
        pod(), causes=(Cause.NO_DRIVER,), says=("p-gpu (mig.nvidia.com)",), more=claimed(REQUEST)
    ),
    "no device left for a claim": Case(
        pod(),
        causes=(Cause.CLAIM_WAITS,),
        says=("none of the devices that the DRA driver offers (gpu-1 7)",),
        more=claimed(REQUEST) | {"dra_pools": {"gpu-1": 7}},
    ),
    "a claim in use elsewhere": Case(
        pod(), causes=(Cause.CLAIM_ELSEWHERE,), says=("in use by other",), more=claimed({"status": ALLOCATED})
    ),
    "an annotation with the name of a layout": Case(
        pod({LARGE: 1}, meta={"annotations": {"nvidia.com/mig-config": "all-3g.40gb"}}),
        causes=(Cause.NOT_ADVERTISED, Cause.IGNORED_ANNOTATION),
        says=("on the pod does nothing", "kubectl label node gpu-1 nvidia.com/mig.config=all-3g.40gb"),
        serves=("gpu-1", "all-balanced"),
    ),
    "an annotation with nearly that name": Case(
        pod(meta={"annotations": {"nvidia.com/mig-config": "all-3g.40g"}}),
        causes=(Cause.NO_GPU_WANTED, Cause.IGNORED_ANNOTATION),
        says=("did you mean all-3g.40gb",),
    ),
    "an annotation with a profile": Case(
        pod(meta={"annotations": {"nvidia.com/mig-config": "3G.40GB"}}),
        causes=(Cause.NO_GPU_WANTED, Cause.IGNORED_ANNOTATION),
        says=("probably meant as 3g.40gb", f"ask for {LARGE}: 1 in the limits"),
    ),
    "the Node's label on the pod": Case(
        pod({SMALL: 1}, meta={"labels": {"nvidia.com/mig.config": "all-1g.10gb"}}),
        causes=(Cause.ROOM, Cause.IGNORED_ANNOTATION),
        says=("The label nvidia.com/mig.config=all-1g.10gb on the pod does nothing",),
    ),
    "everything is there": Case(
        pod({SMALL: 1}, status={"phase": "Pending", "conditions": UNSCHEDULABLE}),
        causes=(Cause.ROOM,),
        says=("something else then, such as CPU or memory",),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_cause_is_named(case: Case) -> None:
    found = diagnose(Scene(case.pod, case.places, **case.more))
    assert tuple(each.cause for each in found.findings) == case.causes
    text = "\n".join([found.verdict, *(f"{each.text} -> {each.todo}" for each in found.findings)])
    for words in case.says:
        assert words in text
    first = found.remedies[0] if found.remedies else None
    assert (first and (first.node, first.layout)) == case.serves
