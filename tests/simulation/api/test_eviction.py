from __future__ import annotations

from typing import Any

import pytest

from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import POD_DISRUPTION_BUDGETS, PODS
from mig_manager.simulation.store import MemoryStore
from tests.simulation.api.clients import PODS as POD_PATH
from tests.simulation.api.clients import Answer, Http, budget, pod


def _evict(http: Http, name: str, **options: Any) -> Answer:
    body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    if options:
        body["deleteOptions"] = options
    return http("POST", f"{POD_PATH}/{name}/eviction", body)


@pytest.fixture
def pods(store: MemoryStore) -> None:
    for i in range(3):
        store.create(PODS, pod(f"p-{i}", app="w"))


@pytest.mark.usefixtures("pods")
def test_without_a_budget_a_pod_is_deleted_with_its_grace(http: Http, store: MemoryStore) -> None:
    answer = _evict(http, "p-0", gracePeriodSeconds=3)
    assert (answer.code, answer.body["status"], answer.body["code"]) == (201, "Success", 201)
    held = store.get(PODS, "default", "p-0")
    assert held is not None
    assert held["metadata"]["deletionGracePeriodSeconds"] == 3
    assert held["status"]["conditions"][-1]["reason"] == "EvictionByEvictionAPI"


@pytest.mark.usefixtures("pods", "swift_kubelet")
def test_a_budget_is_spent_and_comes_back_with_a_new_pod(http: Http, store: MemoryStore) -> None:
    store.create(POD_DISRUPTION_BUDGETS, budget("b", 2, app="w"))
    assert _evict(http, "p-0").code == 201
    refused = _evict(http, "p-1")
    assert refused.code == 429
    assert "Retry-After" not in refused.headers
    assert refused.body["reason"] == "TooManyRequests"
    assert refused.body["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert refused.body["details"]["causes"] == [
        {
            "reason": "DisruptionBudget",
            "message": "The disruption budget b needs 2 healthy pods and has 2 currently",
        }
    ]
    store.create(PODS, pod("p-3", app="w"))
    assert _evict(http, "p-1").code == 201


@pytest.mark.usefixtures("pods")
def test_evictions_that_only_try_spend_nothing(http: Http, store: MemoryStore) -> None:
    store.create(POD_DISRUPTION_BUDGETS, budget("b", "50%", app="w"))
    for _ in range(3):
        assert _evict(http, "p-0", dryRun=["All"]).code == 201
    held = store.get(POD_DISRUPTION_BUDGETS, "default", "b")
    assert held is not None
    assert held["status"]["disruptionsAllowed"] == 1
    assert held["status"]["desiredHealthy"] == 2
    assert "disruptedPods" not in held["status"]


@pytest.mark.usefixtures("pods")
def test_two_budgets_on_a_pod_are_an_error_of_the_server(http: Http, store: MemoryStore) -> None:
    store.create(POD_DISRUPTION_BUDGETS, budget("a", 0, app="w"))
    store.create(POD_DISRUPTION_BUDGETS, budget("b", 0, app="w"))
    answer = _evict(http, "p-0")
    assert answer.code == 500
    assert answer.body["message"] == (
        "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support."
    )


@pytest.mark.parametrize(
    ("policy", "healthy", "code"),
    [(None, 2, 201), (None, 1, 429), ("IfHealthyBudget", 1, 429), ("AlwaysAllow", 1, 201)],
)
def test_a_pod_that_is_not_ready_follows_the_unhealthy_policy(
    http: Http, store: MemoryStore, policy: str | None, healthy: int, code: int
) -> None:
    made = budget("b", 2, app="w")
    if policy:
        made["spec"]["unhealthyPodEvictionPolicy"] = policy
    store.create(POD_DISRUPTION_BUDGETS, made)
    store.create(PODS, pod("sick", ready=False, app="w"))
    for i in range(healthy):
        store.create(PODS, pod(f"p-{i}", app="w"))
    assert _evict(http, "sick").code == code


def test_a_pod_that_has_not_started_needs_no_budget(http: Http, store: MemoryStore) -> None:
    store.create(POD_DISRUPTION_BUDGETS, budget("b", 1, app="w"))
    store.create(PODS, pod("p", on=None, app="w"))
    assert _evict(http, "p").code == 201
    assert store.get(PODS, "default", "p") is None


@pytest.mark.usefixtures("pods")
def test_evictions_are_checked_like_deletions(http: Http) -> None:
    assert _evict(http, "no").code == 404
    assert _evict(http, "p-0", preconditions={"uid": "x"}).code == 409
    nameless = http("POST", f"{POD_PATH}/p-0/eviction", {"kind": "Eviction", "apiVersion": "policy/v1"})
    assert nameless.body["message"] == "name in URL does not match name in Eviction object"
    old = http(
        "POST",
        f"{POD_PATH}/p-0/eviction",
        {"kind": "Eviction", "apiVersion": "policy/v1beta1", "metadata": {"name": "p-0"}},
    )
    assert old.code == 400
