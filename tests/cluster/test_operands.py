"""Operands get back exactly what they had."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mig_manager.cluster.node import NodeChange, NodeClient
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.operands import (
    PAUSED,
    Operand,
    Role,
    delete_pods,
    gpu_operator_operands,
    leftovers,
    new_ready_pod,
    operand_pods,
    pause,
    paused_operands,
    resume,
    stopped_pods,
    unlabelled,
)
from mig_manager.cluster.wait import Deadline
from mig_manager.errors import Reason
from tests.cluster.cluster import PATIENCE_S, Cluster, JsonObject

OPERANDS = gpu_operator_operands("gpu-operator")
LABELS = [operand.label for operand in OPERANDS if operand.label is not None][:5]
PLUGIN = LABELS[0]
FOREIGN = ["paused-for-driver-upgrade", "true_paused-for-driver-upgrade"]


@pytest.mark.parametrize(
    ("value", "originals", "written", "kept"),
    [
        ("true", {}, PAUSED, "true"),
        ("custom", {}, PAUSED, "custom"),
        ("", {}, PAUSED, ""),
        ("false", {}, None, None),
        (None, {}, None, None),
        *((value, {}, None, None) for value in FOREIGN),
        (PAUSED, {}, None, "true"),
        (PAUSED, {PLUGIN: "custom"}, None, "custom"),
        ("true", {PLUGIN: "custom"}, PAUSED, "true"),
        ("false", {PLUGIN: "true"}, None, "true"),
    ],
)
def test_what_a_pause_writes_and_keeps(
    value: str | None, originals: dict[str, str], written: str | None, kept: str | None
) -> None:
    labels = {"other": "x"} if value is None else {"other": "x", PLUGIN: value}
    plan = pause(labels, OPERANDS, originals)
    assert plan.labels == ({PLUGIN: written} if written else {})
    assert plan.originals == ({PLUGIN: kept} if kept is not None else {})


values = st.sampled_from(["true", "false", "custom", "", PAUSED, *FOREIGN])
node_labels = st.dictionaries(st.sampled_from([*LABELS, "other"]), values)
edits = st.dictionaries(st.sampled_from([*LABELS, "other"]), st.none() | values)


def applied(labels: dict[str, str], change: dict[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in {**labels, **change}.items() if value is not None}


@given(before=node_labels)
def test_pause_and_resume_leave_no_trace(before: dict[str, str]) -> None:
    """Except that a pause left over from a crash is healed."""
    plan = pause(before, OPERANDS, {})
    after = applied(before, dict(plan.labels))
    after = applied(after, dict(resume(after, plan.originals)))
    assert after == {
        key: "true" if value == PAUSED and key in LABELS else value for key, value in before.items()
    }


@given(before=node_labels, meanwhile=edits)
def test_what_others_write_meanwhile_stays(before: dict[str, str], meanwhile: dict[str, str | None]) -> None:
    plan = pause(before, OPERANDS, {})
    edited = applied(applied(before, dict(plan.labels)), meanwhile)
    after = applied(edited, dict(resume(edited, plan.originals)))
    for key, value in edited.items():
        if value != PAUSED:
            assert after[key] == value
    assert after.keys() == edited.keys()


@given(before=node_labels)
def test_a_run_that_starts_over_keeps_the_first_originals(before: dict[str, str]) -> None:
    first = pause(before, OPERANDS, {})
    paused = applied(before, dict(first.labels))
    again = pause(paused, OPERANDS, first.originals)
    assert again.labels == {}
    assert again.originals == first.originals


def test_a_pause_without_a_journal_is_a_leftover() -> None:
    assert leftovers({PLUGIN: PAUSED}, OPERANDS, {}) == {PLUGIN: "true"}
    assert leftovers({PLUGIN: PAUSED}, OPERANDS, {PLUGIN: "true"}) == {}
    assert leftovers({PLUGIN: "true", "other": PAUSED}, OPERANDS, {}) == {}


def test_operands_without_a_label_are_never_paused() -> None:
    alone = Operand("plugin", None, {"app": "plugin"})
    plan = pause({"app": "plugin"}, [alone], {})
    assert (plan.labels, plan.originals) == ({}, {})
    assert paused_operands([alone], {}) == ()


def operand_pod(
    name: str,
    app: str,
    namespace: str = "gpu-operator",
    phase: str = "Running",
    spec: Mapping[str, object] = MappingProxyType({}),
    **meta: Any,
) -> Pod:
    return Pod.from_json(
        {
            "metadata": {"namespace": namespace, "name": name, "uid": name, "labels": {"app": app}, **meta},
            "spec": spec,
            "status": {"phase": phase, "conditions": [{"type": "Ready", "status": "True"}]},
        }
    )


def test_pods_belong_to_an_operand_by_labels_and_namespace() -> None:
    plugin, *_ = OPERANDS
    pods = [
        operand_pod("a", "nvidia-device-plugin-daemonset"),
        operand_pod("b", "nvidia-device-plugin-daemonset", namespace="elsewhere"),
        operand_pod("c", "nvidia-dcgm"),
        operand_pod("d", "nvidia-device-plugin-daemonset", phase="Failed"),
    ]
    assert [pod.name for pod in operand_pods(pods, [plugin])] == ["a"]
    assert [pod.name for pod in operand_pods(pods, gpu_operator_operands())] == ["b", "a", "c"]
    assert operand_pods(pods, [Operand("nothing", None, {})]) == ()


def by_affinity(key: str) -> JsonObject:
    term = {"matchExpressions": [{"key": key, "operator": "In", "values": ["true"]}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
    return {"affinity": {"nodeAffinity": required}}


CLIENT = "nvidia.com/gpu.deploy.client"
DAEMON_SET: JsonObject = {
    "ownerReferences": [{"kind": "DaemonSet", "name": "o", "uid": "o", "controller": True}]
}


@pytest.mark.parametrize(
    ("spec", "meta", "stops"),
    [
        ({"nodeSelector": {CLIENT: "true"}}, DAEMON_SET, True),
        (by_affinity(CLIENT), DAEMON_SET, True),
        ({"nodeSelector": {CLIENT: "true"}}, {}, False),
        (by_affinity("disk"), DAEMON_SET, False),
        ({}, DAEMON_SET, False),
    ],
)
def test_daemon_sets_that_go_by_a_deploy_label_are_stopped_with_it(
    spec: JsonObject, meta: JsonObject, stops: bool
) -> None:
    """A pause moves no other pods: those stay where they are bound."""
    pod = operand_pod("monitor", "monitor", namespace="elsewhere", spec=spec, **meta)
    clients = [one for one in OPERANDS if one.label == CLIENT]
    assert operand_pods([pod], OPERANDS) == ()
    assert stopped_pods([pod], clients) == ((pod,) if stops else ())
    assert stopped_pods([pod], [one for one in OPERANDS if one not in clients]) == ()


def test_a_container_tells_pods_with_the_same_labels_apart() -> None:
    plugin = Operand("plugin", None, {"app": "nvdp"}, container="plugin-ctr")
    discovery = Operand("discovery", None, {"app": "nvdp"}, container="discovery-ctr")
    pod = operand_pod("a", "nvdp", spec={"containers": [{"name": "sidecar"}, {"name": "plugin-ctr"}]})
    assert operand_pods([pod], [plugin]) == (pod,)
    assert operand_pods([pod], [discovery]) == ()


def test_validators_are_never_paused_and_start_anew_with_those_that_no_label_stops() -> None:
    validator = next(one for one in OPERANDS if one.role is Role.VALIDATOR)
    assert validator.label is not None
    labels = {PLUGIN: "true", validator.label: "true"}
    assert pause(labels, OPERANDS, {}).labels == {PLUGIN: PAUSED}
    assert paused_operands([validator], {validator.label: "true"}) == ()
    alone = unlabelled(labels, OPERANDS)
    assert validator in alone
    assert OPERANDS[0] not in alone
    assert OPERANDS[1] in alone


def test_only_a_new_pod_that_is_ready_and_stays_counts() -> None:
    plugin, *_ = OPERANDS
    app = plugin.selector["app"]
    old = operand_pod("old", app)
    leaving = operand_pod("leaving", app, deletionTimestamp="2026-01-01T00:00:00Z")
    new = operand_pod("new", app)
    before = frozenset({"old"})
    assert new_ready_pod([old, leaving], [plugin], before) is None
    assert new_ready_pod([old, leaving, new], [plugin], before) == new


def test_a_pause_on_a_real_node_invents_no_label_and_is_undone_exactly(cluster: Cluster) -> None:
    node = NodeClient(cluster.api, cluster.node)
    before: dict[str, str | None] = {
        LABELS[0]: "true",
        LABELS[1]: "false",
        LABELS[2]: "custom",
        LABELS[3]: "",
    }
    original = dict(node.patch(NodeChange(labels=before)).meta.labels)
    plan = pause(original, OPERANDS, {})
    paused = node.patch(NodeChange(labels=plan.labels))
    assert [paused.meta.labels.get(label) for label in LABELS] == [PAUSED, "false", PAUSED, PAUSED, None]
    resumed = node.patch(NodeChange(labels=resume(paused.meta.labels, plan.originals)))
    assert resumed.meta.labels == original


def test_deleting_pods_passes_over_those_that_are_gone_or_were_replaced(cluster: Cluster) -> None:
    gone, old, there = (cluster.run_pod(name, resource=None) for name in ("gone", "replaced", "there"))
    for name in ("gone", "replaced"):
        cluster.api.delete(cluster.path("pods", name), {"gracePeriodSeconds": 0})
    new = cluster.run_pod("replaced", resource=None)
    with cluster.watching() as pods:
        delete_pods(cluster.api, [gone, old, there])
        cluster.signal.wait_for(
            lambda: there.uid not in pods.objects,
            Deadline.after(PATIENCE_S),
            "still there",
            reason=Reason.OPERAND_TIMEOUT,
        )
        assert pods.objects[new.uid].deleted is None
