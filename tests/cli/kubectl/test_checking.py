"""Each way in which an installation can be wrong is found, and nothing else beside it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from mig_manager.cli.kubectl.checking.examination import examine
from mig_manager.cli.kubectl.checking.snapshot import CLUSTER, Check, Snapshot, Verdict
from mig_manager.cli.kubectl.checking.words import check_lines
from mig_manager.cluster.access import Permission
from mig_manager.cluster.operands import PAUSED
from mig_manager.daemon.journal import JOURNAL_ANNOTATION
from mig_manager.daemon.permissions import Need
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    STATUS_ANNOTATION,
    STRATEGY_LABEL,
    Phase,
    State,
)
from mig_manager.errors import Reason
from tests.cli.kubectl.snapshots import (
    ACCOUNT,
    DONE,
    HEALTHY,
    JOURNAL,
    NOW,
    binding,
    daemon,
    node,
    plugin,
    pod,
    unlike,
)

OK, UNKNOWN, WARNING, PROBLEM = Verdict.OK, Verdict.UNKNOWN, Verdict.WARNING, Verdict.PROBLEM

FAILED = replace(DONE, state=State.FAILED, reason=Reason.EVICTION_BLOCKED, message="pod ml/a, PDB ml/b")
RUNNING = replace(DONE, state=State.PENDING, phase=Phase.APPLYING, finishedAt=None)
LATER = NOW + timedelta(hours=2)
PAUSED_DCGM = {"nvidia.com/gpu.deploy.dcgm": PAUSED}
PATCH = Need(Permission("patch", "nodes", name="gpu-1"), "nothing can be done on this node", required="look")
EVENTS = Need(Permission("create", "events", namespace="default"), "Events are only logged")
BROKEN_OFF = node(status=RUNNING, journal=JOURNAL, labels=PAUSED_DCGM, unschedulable=True)
MIXED = {"MIG_MANAGER_MIG_STRATEGY": "mixed"}
BARE = {CONFIG_LABEL: None, "nvidia.com/gpu.deploy.device-plugin": None}
NOTHING = {GPUS_ANNOTATION: None, LAYOUTS_ANNOTATION: None}
TAINT = [{"key": "mig-manager/not-ready", "effect": "NoSchedule"}]
NVIDIAS = pod(
    "nvidia-mig-manager-x",
    {"app": "nvidia-mig-manager"},
    image="nvcr.io/nvidia/cloud-native/k8s-mig-manager:v0.12",
)
BY_OPERATOR = pod(
    "nvidia-mig-manager-y",
    {"app": "nvidia-mig-manager"},
    image="r/mig-manager:0.1.0",
    account="nvidia-mig-manager",
)


def slices(**attributes: object) -> tuple[dict[str, object], ...]:
    device = {"name": "gpu-0", "attributes": attributes}
    return ({"spec": {"nodeName": "gpu-1", "pool": {"name": "gpu-1", "generation": 1}, "devices": [device]}},)


def not_ok(seen: Snapshot) -> list[Check]:
    return [each for each in examine(seen) if each.verdict is not OK]


def test_a_healthy_cluster_has_nothing_to_say_against_it() -> None:
    checks = list(examine(HEALTHY))
    assert not_ok(HEALTHY) == []
    assert {each.where for each in checks} == {CLUSTER, "gpu-1"}
    assert len({(each.where, each.name) for each in checks}) == len(checks) == 14


CASES: dict[str, tuple[Snapshot, list[tuple[str, Verdict, str]]]] = {
    "an old Kubernetes": (unlike(kubernetes="v1.28.3"), [("kubernetes", PROBLEM, "1.30 to 1.37")]),
    "a newer one": (unlike(kubernetes="v1.40.0+rke2"), [("kubernetes", WARNING, "v1.40.0+rke2")]),
    "no daemon anywhere, as after a removal": (
        unlike(pods=(plugin(),), missing={}),
        [
            ("daemon", WARNING, "or is gone"),
            ("permissions", UNKNOWN, ""),
            ("admission-policy", UNKNOWN, ""),
        ],
    ),
    "nothing installed": (
        unlike(
            pods=(),
            missing={},
            inventories={},
            nodes=(node(status=None, annotations=NOTHING, labels=BARE, offers={}),),
        ),
        [
            ("daemon", WARNING, "no daemon is seen"),
            ("permissions", UNKNOWN, ""),
            ("admission-policy", UNKNOWN, ""),
            ("driver", UNKNOWN, "no layout is asked for"),
            ("device-plugin", WARNING, ""),
            ("resources", UNKNOWN, ""),
        ],
    ),
    "no daemon on one node": (
        unlike(pods=(plugin(), daemon("gpu-2"))),
        [("daemon", PROBLEM, "no pod of the daemon"), ("leftovers", WARNING, "the state label says success")],
    ),
    "two daemons": (
        unlike(pods=(plugin(), daemon(), BY_OPERATOR), missing={ACCOUNT: ()}),
        [
            ("admission-policy", WARNING, "gpu-operator/nvidia-mig-manager"),
            ("daemon", PROBLEM, "more than one daemon"),
        ],
    ),
    "a daemon that crashes": (
        unlike(pods=(plugin(), daemon(ready=False, restarts=9, waiting="CrashLoopBackOff"))),
        [("daemon", PROBLEM, "is not ready (CrashLoopBackOff), restarted 9 times")],
    ),
    "a daemon that has crashed": (
        unlike(pods=(plugin(), daemon(restarts=9))),
        [("daemon", WARNING, "restarted 9 times")],
    ),
    "another version": (
        unlike(version="0.2.0"),
        [("version", WARNING, "the daemon is 0.1.0, kubectl-mig 0.2.0")],
    ),
    "nobody may be asked about permissions": (
        unlike(missing=None, unread={"missing": "403"}),
        [("permissions", UNKNOWN, "you may not ask")],
    ),
    "but the daemon has complained": (
        unlike(missing=None, complaints=("no permission to patch nodes",)),
        [("permissions", WARNING, "the daemon says: no permission to patch nodes")],
    ),
    "the most important permission": (
        unlike(missing={ACCOUNT: (PATCH, EVENTS)}),
        [("permissions", PROBLEM, "no permission to patch nodes gpu-1: nothing can be done")],
    ),
    "a lesser one": (
        unlike(missing={ACCOUNT: (EVENTS,)}),
        [("permissions", WARNING, "Events are only logged")],
    ),
    "no admission policy": (unlike(policies=()), [("admission-policy", WARNING, "could change any Node")]),
    "one without a binding": (unlike(bindings=()), [("admission-policy", WARNING, "has no binding")]),
    "one that only audits": (
        unlike(bindings=(binding("Audit"),)),
        [("admission-policy", WARNING, "denies nothing")],
    ),
    "an API server without them": (
        unlike(policies=None, unread={"policies": "404"}),
        [("admission-policy", UNKNOWN, "404")],
    ),
    "no driver": (
        unlike(
            nodes=(
                node(status=replace(FAILED, reason=Reason.NVML_ERROR, message="libnvidia-ml.so.1 not found")),
            )
        ),
        [("driver", PROBLEM, "libnvidia-ml.so.1"), ("state", PROBLEM, "failed: NvmlError")],
    ),
    "a misspelled layout": (
        unlike(nodes=(node(labels={CONFIG_LABEL: "all-1g.10g"}),)),
        [("layout", PROBLEM, "did you mean all-1g.10gb"), ("state", WARNING, "still about all-1g.10gb")],
    ),
    "a layout file that cannot be used": (
        unlike(nodes=(node(annotations={LAYOUTS_ANNOTATION: "[]"}),)),
        [("layout", PROBLEM, "it can take no layout now: its layout file cannot be used")],
    ),
    "a failed run": (
        unlike(nodes=(node(status=FAILED),)),
        [("state", PROBLEM, "failed: EvictionBlocked: pod ml/a")],
    ),
    "a run that does not end": (
        unlike(now=LATER, nodes=(node(status=RUNNING, journal=JOURNAL),)),
        [("state", WARNING, "pending for 121 min")],
    ),
    "a label that nobody has taken up": (
        unlike(nodes=(node(status=None),)),
        [("state", PROBLEM, "no daemon has said a word")],
    ),
    "a device plugin that is not ready": (
        unlike(pods=(daemon(), plugin(ready=False))),
        [("device-plugin", PROBLEM, "is not ready")],
    ),
    "a device plugin with another strategy": (
        unlike(pods=(daemon(), plugin("single"))),
        [("device-plugin", PROBLEM, "has the MIG strategy single")],
    ),
    "a device plugin whose strategy the daemon does not know": (
        unlike(nodes=(node(labels={STRATEGY_LABEL: None}),)),
        [("device-plugin", PROBLEM, "the daemon takes it for none")],
    ),
    "a device plugin whose strategy the daemon has been told": (
        unlike(nodes=(node(labels={STRATEGY_LABEL: None}),), pods=(daemon(env=MIXED), plugin())),
        [],
    ),
    "no device plugin": (
        unlike(pods=(daemon(),), nodes=(node(offers={}),)),
        [("device-plugin", WARNING, "no device plugin runs")],
    ),
    "a device plugin that nobody knows": (
        unlike(pods=(daemon(),)),
        [("device-plugin", UNKNOWN, "another one runs here")],
    ),
    "old numbers": (
        unlike(nodes=(node(offers={"nvidia.com/gpu": 2}),)),
        [("resources", PROBLEM, "advertises nvidia.com/gpu=2; expected are nvidia.com/mig-1g.10gb=14")],
    ),
    "GPU clients that nobody paused": (
        unlike(nodes=(node(labels=PAUSED_DCGM),)),
        [("operands", PROBLEM, "nvidia.com/gpu.deploy.dcgm")],
    ),
    "GPU clients that another program paused": (
        unlike(nodes=(node(labels={"nvidia.com/gpu.deploy.dcgm": "paused-for-driver-upgrade"}),)),
        [("operands", WARNING, "paused-for-driver-upgrade")],
    ),
    "a run under way": (unlike(nodes=(BROKEN_OFF,)), []),
    "a run that was broken off, its daemon gone": (
        unlike(nodes=(BROKEN_OFF,), pods=(plugin(), daemon("gpu-2"))),
        [
            ("daemon", PROBLEM, "no pod"),
            (
                "leftovers",
                PROBLEM,
                "a cordon that is ours; paused GPU clients (dcgm); host units that may be stopped",
            ),
        ],
    ),
    "the same a while ago, where no daemon is a pod": (
        unlike(now=LATER, nodes=(BROKEN_OFF,), pods=(plugin(),), missing={}),
        [
            ("daemon", WARNING, ""),
            ("permissions", UNKNOWN, ""),
            ("admission-policy", UNKNOWN, ""),
            ("state", WARNING, "121 min"),
            ("leftovers", PROBLEM, "was broken off, and no daemon is seen"),
        ],
    ),
    "a journal that stays": (
        unlike(nodes=(node(journal=JOURNAL),)),
        [("leftovers", WARNING, "no run is under way, but")],
    ),
    "a journal that makes no sense": (
        unlike(nodes=(node(annotations={JOURNAL_ANNOTATION: "{"}),)),
        [("leftovers", PROBLEM, "cannot be read")],
    ),
    "a start-up taint that stays": (
        unlike(nodes=(node(taints=TAINT),)),
        [("leftovers", PROBLEM, "start-up taint")],
    ),
    "NVIDIA's mig-manager too": (
        unlike(pods=(daemon(), plugin(), NVIDIAS)),
        [("owners", PROBLEM, "NVIDIA's own mig-manager runs here too")],
    ),
    "ours in the place of NVIDIA's": (
        unlike(pods=(BY_OPERATOR, plugin()), policies=()),
        [("admission-policy", WARNING, "gpu-operator/")],
    ),
    "InstaSlice": (
        unlike(pods=(daemon(), plugin(), pod("instaslice-x", {"name": "instaslice-daemonset"}))),
        [("owners", PROBLEM, "InstaSlice")],
    ),
    "nos": (
        unlike(nodes=(node(labels={"nos.nebuly.com/gpu-partitioning": "mig"}),)),
        [("owners", PROBLEM, "nos has")],
    ),
    "HAMi": (
        unlike(nodes=(node(annotations={"hami.io/node-nvidia-register": "[]"}),)),
        [("owners", WARNING, "HAMi")],
    ),
    "a DRA driver beside the device plugin": (
        unlike(slices=slices(uuid={"string": "GPU-1"})),
        [("owners", WARNING, "give away the same GPUs")],
    ),
    "a DRA driver that makes instances": (
        unlike(pods=(daemon(),), nodes=(node(offers={}),), slices=slices(type={"string": "mig"})),
        [("device-plugin", WARNING, ""), ("owners", PROBLEM, "makes MIG devices itself")],
    ),
    "pods that may not be read": (
        unlike(pods=None, unread={"pods": "403"}, missing={}),
        [
            ("daemon", UNKNOWN, "403"),
            ("permissions", UNKNOWN, ""),
            ("admission-policy", UNKNOWN, ""),
            ("device-plugin", UNKNOWN, "403"),
            ("owners", UNKNOWN, "403"),
        ],
    ),
    "GPUs without MIG": (unlike(nodes=(node(labels={"nvidia.com/mig.capable": "false"}, status=None),)), []),
    "a status that this version cannot read": (
        unlike(nodes=(node(annotations={STATUS_ANNOTATION: "?"}),)),
        [("state", PROBLEM, "")],
    ),
}


@pytest.mark.parametrize(("seen", "expected"), CASES.values(), ids=CASES.keys())
def test_a_fault_is_found_and_nothing_else(seen: Snapshot, expected: list[tuple[str, Verdict, str]]) -> None:
    found = not_ok(seen)
    assert [(each.name, each.verdict) for each in found] == [(name, verdict) for name, verdict, _ in expected]
    for each, (_, _, words) in zip(found, expected, strict=True):
        assert words in each.found
    assert all(each.todo for each in found if each.verdict is PROBLEM and each.name != "kubernetes")


def test_of_several_nodes_those_in_order_are_only_named() -> None:
    checks = (
        Check("kubernetes", CLUSTER, OK, "v1.34.0"),
        *(Check("state", node, OK, "all-1g.10gb") for node in ("gpu-1", "gpu-2", "gpu-3")),
        Check("leftovers", "gpu-2", PROBLEM, "a journal", "read it"),
    )
    text = "\n".join(line.plain for line in check_lines(checks))
    assert "gpu-2\n  ok       state       all-1g.10gb\n  problem  leftovers   a journal\n" in text
    assert "\n\nin order\n  gpu-1\n  gpu-3\n\n5 checks: 4 ok, 1 problem" in text
    alone = [line.plain for line in check_lines([check for check in checks if check.where == "gpu-1"])]
    assert alone[:2] == ["gpu-1", "  ok       state  all-1g.10gb"], "one Node that was named is shown whole"
