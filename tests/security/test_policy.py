"""With a daemon's token, nothing can be changed but its own Node, and of that only what is the daemon's own.

The expressions are those of deploy/policy. They are evaluated by Google's CEL library over the simulated API server, or
by a real one that MIG_MANAGER_E2E_KUBECONFIG names. In tests/daemon every request of every run passes them too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mig_manager.cluster.refusal import ApiError
from mig_manager.simulation.world import NAMESPACE
from tests.security.bed import (
    NODE,
    OTHER,
    OWN,
    PAUSED,
    TAINTS,
    Bed,
    event,
    event_of,
    events,
    lease,
    lease_of,
    leases,
    node,
    pod,
    pod_on,
    policy_bed,
)

Body = dict[str, Any]


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with policy_bed(tmp_path_factory.mktemp("policy")) as made:
        yield made


@pytest.fixture
def bed(standing: Bed) -> Bed:
    standing.renew()
    return standing


def labels(**changes: str | None) -> Body:
    """`dcgm` stands for the deploy label of that name."""
    return {
        "metadata": {
            "labels": {f"nvidia.com/gpu.deploy.{key.replace('_', '-')}": changes[key] for key in changes}
        }
    }


def label(key: str, value: str | None) -> Body:
    return {"metadata": {"labels": {key: value}}}


def annotation(key: str, value: str | None) -> Body:
    return {"metadata": {"annotations": {key: value}}}


def resources(name: str, amount: str | None) -> Body:
    return {"status": {"capacity": {name: amount}, "allocatable": {name: amount}}}


def on_a_pod(host: str) -> Body:
    made = event_of(host, "Pod", "web")
    return {**made, "involvedObject": {**made["involvedObject"], "namespace": NAMESPACE}}


def stored(name: str) -> Body:
    return {**NODE, "metadata": {**NODE["metadata"], "name": name}}


HELD = {"spec": {"renewTime": "2026-01-01T00:00:00.000000Z"}}
STATUS = node(OWN, "/status")


ALLOWED: dict[str, tuple[str, str, Body | None]] = {
    "begin a run": (
        "PATCH",
        node(OWN),
        {
            "metadata": {
                "labels": {"nvidia.com/mig.config.state": "pending", "nvidia.com/gpu.deploy.dcgm": PAUSED},
                "annotations": {"mig-manager/journal": "{}", "mig-manager/status": "{}"},
            },
            "spec": {"unschedulable": True},
        },
    ),
    "resume an operand": ("PATCH", node(OWN), labels(device_plugin="true")),
    "drop the state": ("PATCH", node(OWN), label("nvidia.com/mig.config.state", None)),
    "drop an own annotation": ("PATCH", node(OWN), annotation("mig-manager/status", None)),
    "take the start-up taint off": ("PATCH", node(OWN), {"spec": {"taints": TAINTS[1:]}}),
    "change nothing": ("PATCH", node(OWN), {}),
    "take out an old resource": ("PATCH", STATUS, resources("nvidia.com/mig-1g.10gb", None)),
    "delete a pod of the node": ("DELETE", pod(OWN), None),
    "take a fleet slot": ("POST", leases(), lease_of(OWN, "mig-test-new")),
    "renew a fleet slot": ("PATCH", lease(OWN), HELD),
    "give a fleet slot back": ("DELETE", lease(OWN), None),
    "delete the slot of a dead node": ("DELETE", lease(OTHER), None),
    "an Event": ("POST", events(), event_of(OWN, "Node", OWN)),
    "an Event that comes again": ("PATCH", event(OWN), {"count": 2}),
    "an Event on a pod": ("POST", events(NAMESPACE), on_a_pod(OWN)),
}

REFUSED: dict[str, tuple[str, str, Body | None]] = {
    "another Node": ("PATCH", node(OTHER), annotation("mig-manager/status", "x")),
    "another Node's cordon": ("PATCH", node(OTHER), {"spec": {"unschedulable": True}}),
    "another Node's status": ("PATCH", node(OTHER, "/status"), resources("nvidia.com/mig-1g.10gb", None)),
    "deleting the own Node": ("DELETE", node(OWN), None),
    "a new Node": ("POST", "/api/v1/nodes", {"metadata": {"name": "mig-test-third"}}),
    "the wish": ("PATCH", node(OWN), label("nvidia.com/mig.config", "other")),
    "a foreign label": ("PATCH", node(OWN), label("theirs", "y")),
    "a new foreign label": ("PATCH", node(OWN), label("node-role.kubernetes.io/control-plane", "")),
    "a foreign label's end": ("PATCH", node(OWN), label("theirs", None)),
    "a new deploy label": ("PATCH", node(OWN), labels(nvsm="true")),
    "another value of a deploy label": ("PATCH", node(OWN), labels(dcgm="false")),
    "a deploy label's end": ("PATCH", node(OWN), labels(device_plugin=None)),
    "a foreign annotation": ("PATCH", node(OWN), annotation("theirs", "y")),
    "a new foreign annotation": (
        "PATCH",
        node(OWN),
        annotation("kubeadm.alpha.kubernetes.io/cri-socket", "y"),
    ),
    "a foreign annotation's end": ("PATCH", node(OWN), annotation("theirs", None)),
    "a finalizer": ("PATCH", node(OWN), {"metadata": {"finalizers": ["example.com/x"]}}),
    "a foreign taint's end": ("PATCH", node(OWN), {"spec": {"taints": TAINTS[:1]}}),
    "all taints' end": ("PATCH", node(OWN), {"spec": {"taints": None}}),
    "a new taint": ("PATCH", node(OWN), {"spec": {"taints": [*TAINTS, {"key": "y", "effect": "NoExecute"}]}}),
    "a start-up taint with another effect": (
        "PATCH",
        node(OWN),
        {"spec": {"taints": [{**TAINTS[0], "effect": "NoExecute"}, TAINTS[1]]}},
    ),
    "spec.podCIDR": ("PATCH", node(OWN), {"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"]}}),
    "spec.providerID": ("PATCH", node(OWN), {"spec": {"providerID": "aws:///x/i-1"}}),
    "a label by way of the status": ("PATCH", STATUS, label("theirs", "y")),
    "more MIG devices": ("PATCH", STATUS, resources("nvidia.com/mig-1g.10gb", "7")),
    "a new resource": ("PATCH", STATUS, resources("nvidia.com/mig-2g.20gb", "7")),
    "whole GPUs": ("PATCH", STATUS, resources("nvidia.com/gpu", None)),
    "the CPUs": ("PATCH", STATUS, resources("cpu", None)),
    "all resources": ("PATCH", STATUS, {"status": {"capacity": None}}),
    "conditions": (
        "PATCH",
        STATUS,
        {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x", "message": "x"}]}},
    ),
    "another node's pod": ("DELETE", pod(OTHER), None),
    "a new pod": ("POST", pod("").rstrip("/"), {**pod_on(OWN), "metadata": {"name": "mig-test-new"}}),
    "a pod's label": ("PATCH", pod(OWN), label("x", "y")),
    "a slot for another node": ("POST", leases(), lease_of(OTHER, "mig-test-new")),
    "another node's slot": ("PATCH", lease(OTHER), HELD),
    "giving a slot away": ("PATCH", lease(OWN), {"spec": {"holderIdentity": OTHER}}),
    "a Lease in another namespace": ("POST", leases("default"), lease_of(OWN, "mig-test-new")),
    "a Lease that is no slot": (
        "POST",
        leases(),
        {"metadata": {"name": "mig-test-new"}, "spec": {"holderIdentity": OWN}},
    ),
    "somebody else's election": ("DELETE", lease("leader"), None),
    "an Event on another Node": ("POST", events(), event_of(OWN, "Node", OTHER)),
    "an Event in another's name": ("POST", events(NAMESPACE), on_a_pod(OTHER)),
    "an Event on a Secret": ("POST", events(), event_of(OWN, "Secret", "s")),
    "another's Event": ("PATCH", event(OTHER), {"source": {"host": OWN}}),
    "giving an Event away": ("PATCH", event(OWN), {"source": {"host": OTHER}}),
    "an Event's end": ("DELETE", event(OWN), None),
    "making an election a slot": ("PATCH", lease("leader"), label("mig-manager/lease", "slot")),
}


def send(bed: Bed, request: tuple[str, str, Body | None]) -> None:
    method, path, body = request
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    bed.daemon.request(method, path, body=body, content_type=kind)


@pytest.mark.parametrize("request_", ALLOWED.values(), ids=ALLOWED.keys())
def test_what_a_run_takes_is_allowed(bed: Bed, request_: tuple[str, str, Body | None]) -> None:
    send(bed, request_)


@pytest.mark.parametrize("request_", REFUSED.values(), ids=REFUSED.keys())
def test_everything_else_is_refused(bed: Bed, request_: tuple[str, str, Body | None]) -> None:
    with pytest.raises(ApiError) as caught:
        send(bed, request_)
    assert caught.value.status == 403
    assert "ValidatingAdmissionPolicy 'mig-manager'" in caught.value.message


def test_a_whole_update_is_held_to_the_same(bed: Bed) -> None:
    held = bed.daemon.get(node(OWN))
    held["metadata"]["labels"]["nvidia.com/mig.config.state"] = "failed"
    held = bed.daemon.request("PUT", node(OWN), body=held)
    held["metadata"]["labels"]["theirs"] = "y"
    with pytest.raises(ApiError) as caught:
        bed.daemon.request("PUT", node(OWN), body=held)
    assert caught.value.status == 403


def test_a_node_without_labels_annotations_and_taints_can_be_begun_with(bed: Bed) -> None:
    bed.admin.delete(node(OWN))
    bed.admin.create("/api/v1/nodes", {"metadata": {"name": OWN}})
    send(bed, ALLOWED["drop the state"])
    send(bed, ("PATCH", node(OWN), annotation("mig-manager/status", "{}")))
    with pytest.raises(ApiError):
        send(bed, REFUSED["a new taint"])


def test_a_token_that_belongs_to_no_pod_changes_nothing(bed: Bed) -> None:
    with pytest.raises(ApiError) as caught:
        bed.nobody.patch(node(OWN), annotation("mig-manager/status", "{}"))
    assert caught.value.status == 403
    assert "does not say which node" in caught.value.message


def test_others_are_not_held_to_it(bed: Bed) -> None:
    bed.admin.patch(node(OTHER), label("theirs", "z"))
    bed.admin.delete(pod(OTHER))
