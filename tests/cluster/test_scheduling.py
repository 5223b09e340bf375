"""What a pod asks of a Node, and what keeps it from one, are told as the scheduler goes by them."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.cluster.objects import JsonObject, Node
from mig_manager.cluster.scheduling import extended_requests, tolerates_cordon, unmatched, untolerated_taints

NODE = Node.from_json(
    {
        "metadata": {"name": "n", "labels": {"pool": "a", "gpus": "8"}},
        "spec": {
            "taints": [
                {"key": "team", "value": "x", "effect": "NoSchedule"},
                {"key": "drain", "effect": "NoExecute"},
                {"key": "soft", "effect": "PreferNoSchedule"},
                {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"},
            ]
        },
    }
)


def container(count: int, **more: Any) -> JsonObject:
    return {"resources": {"limits": {"nvidia.com/gpu": str(count), "cpu": "4"}}, **more}


@pytest.mark.parametrize(
    ("spec", "wanted"),
    [
        ({"containers": [container(1), container(2)]}, 3),
        ({"containers": [container(1)], "initContainers": [container(4)]}, 4),
        ({"containers": [container(1)], "initContainers": [container(1, restartPolicy="Always")]}, 2),
        ({"containers": [{}], "initContainers": [container(1, restartPolicy="Always"), container(2)]}, 3),
        ({"containers": [{"resources": {"requests": {"nvidia.com/gpu": "1"}}}]}, 1),
    ],
)
def test_a_pod_asks_for_what_it_needs_at_once(spec: JsonObject, wanted: int) -> None:
    assert extended_requests({"spec": spec}) == {"nvidia.com/gpu": wanted}


def test_what_a_claim_stands_for_is_not_asked_of_a_node() -> None:
    claimed = {"extendedResourceClaimStatus": {"requestMappings": [{"resourceName": "nvidia.com/gpu"}]}}
    assert extended_requests({"spec": {"containers": [container(1)]}, "status": claimed}) == {}


def affinity(*terms: JsonObject) -> JsonObject:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": required}}


def label(key: str, operator: str, *values: str) -> JsonObject:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({}, ()),
        ({"nodeSelector": {"pool": "a"}}, ()),
        ({"nodeSelector": {"pool": "b"}}, ("nodeSelector pool=b (it has a)",)),
        ({"nodeSelector": {"zone": "b"}}, ("nodeSelector zone=b (it has no such label)",)),
        (affinity(label("pool", "In", "a", "b")), ()),
        (affinity(label("pool", "In", "b", "c")), ("node affinity pool In (b, c)",)),
        (affinity(label("pool", "NotIn", "a")), ("node affinity pool NotIn (a)",)),
        (affinity(label("zone", "NotIn", "a")), ()),
        (affinity(label("zone", "Exists")), ("node affinity zone Exists",)),
        (affinity(label("zone", "DoesNotExist")), ()),
        (affinity(label("gpus", "Gt", "4")), ()),
        (affinity(label("gpus", "Lt", "8")), ("node affinity gpus Lt (8)",)),
        (affinity(label("pool", "Gt", "4")), ("node affinity pool Gt (4)",)),
        (affinity(label("pool", "In", "b"), label("gpus", "Exists")), ()),
        (affinity({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}), ()),
        (affinity({}), ("node affinity nothing",)),
    ],
)
def test_what_a_node_does_not_meet_is_told(spec: JsonObject, words: tuple[str, ...]) -> None:
    assert unmatched(spec, NODE) == words


@pytest.mark.parametrize(
    ("tolerations", "keeping_away"),
    [
        ([], ["team", "drain"]),
        ([{"operator": "Exists"}], []),
        ([{"key": "team", "value": "x"}], ["drain"]),
        ([{"key": "team", "value": "y"}], ["team", "drain"]),
        ([{"key": "team", "operator": "Exists", "effect": "NoExecute"}], ["team", "drain"]),
        ([{"key": "drain"}], ["team"]),
    ],
)
def test_taints_keep_away_whoever_does_not_tolerate_them(
    tolerations: list[JsonObject], keeping_away: list[str]
) -> None:
    found = untolerated_taints({"tolerations": tolerations}, NODE)
    assert [taint.key for taint in found] == keeping_away


def test_a_cordon_is_tolerated_by_its_taint() -> None:
    assert not tolerates_cordon({})
    assert tolerates_cordon(
        {"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]}
    )
