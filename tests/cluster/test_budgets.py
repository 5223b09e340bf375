"""Whether a PodDisruptionBudget would refuse an eviction is told as the API server does it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mig_manager.cluster.budgets import Budget, find_budgets, refusal, selects
from mig_manager.cluster.eviction import evict
from mig_manager.cluster.objects import Pod
from tests.cluster.cluster import Cluster


def test_it_is_told_as_the_api_server_answers_a_dry_run(cluster: Cluster) -> None:
    """Each pod has a label of its own name; budgets select by it, in different ways."""
    pods = [
        cluster.run_pod(name, labels={"app": name}, ready=ready, phase=phase)
        for name, ready, phase in [
            ("nobody", True, "Running"),
            ("kept", True, "Running"),
            ("room", True, "Running"),
            ("unready", False, "Running"),
            ("unready-goes", False, "Running"),
            ("twice", True, "Running"),
            ("pending", False, "Pending"),
            ("by-expression", True, "Running"),
        ]
    ]

    def budget(name: str, selector: dict[str, Any], **spec: object) -> None:
        body = {"metadata": {"name": name}, "spec": {"selector": selector, **spec}}
        cluster.create("poddisruptionbudgets", body, group="policy/v1")

    def app(name: str) -> dict[str, Any]:
        return {"matchLabels": {"app": name}}

    budget("keeps", app("kept"), minAvailable=1)
    budget("has-room", app("room"), minAvailable=0)
    budget("healthy-only", app("unready"), minAvailable=1)
    budget("unhealthy-too", app("unready-goes"), minAvailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
    budget("first", app("twice"), minAvailable=0)
    budget("second", app("twice"), minAvailable=0)
    budget("of-pending", app("pending"), minAvailable=1)
    expression = {"key": "app", "operator": "In", "values": ["by-expression", "other"]}
    budget("by-expression", {"matchExpressions": [expression]}, maxUnavailable=0)
    budgets = [each for each in find_budgets(cluster.api) if each.namespace == cluster.namespace]
    held = {pod.name: refusal(pod, budgets) for pod in pods}
    answers = {pod.name: evict(cluster.api, pod, grace_s=None, rehearsal=True) is not None for pod in pods}
    assert {name: bool(words) for name, words in held.items()} == answers
    assert {name for name, words in held.items() if words} == {"kept", "unready", "twice", "by-expression"}
    assert held["kept"] == "PodDisruptionBudget keeps lets no pod go now"
    assert "first and second" in held["twice"] or "second and first" in held["twice"]


@pytest.mark.parametrize(
    ("selector", "selected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "a"}}, True),
        ({"matchLabels": {"app": "b"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["b"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["b"]}]}, True),
        ({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}, False),
        ({"matchExpressions": [{"key": "tier", "operator": "DoesNotExist"}]}, True),
        (
            {
                "matchLabels": {"app": "a"},
                "matchExpressions": [{"key": "app", "operator": "In", "values": []}],
            },
            False,
        ),
    ],
)
def test_a_label_selector(selector: Mapping[str, Any] | None, selected: bool) -> None:
    assert selects(selector, {"app": "a"}) is selected


def test_a_budget_of_another_namespace_or_not_looked_at_yet() -> None:
    meta = {"name": "web", "namespace": "a", "generation": 2}
    found = Budget.from_json(
        {
            "metadata": meta,
            "spec": {"selector": {}},
            "status": {"disruptionsAllowed": 3, "observedGeneration": 1},
        }
    )
    ready = [{"type": "Ready", "status": "True"}]
    pod = {"metadata": {"name": "x", "namespace": "a"}, "status": {"phase": "Running", "conditions": ready}}
    assert "has not looked at it yet" in refusal(Pod.from_json(pod), [found])
    pod["metadata"]["namespace"] = "b"  # type: ignore[index]
    assert refusal(Pod.from_json(pod), [found]) == ""
