"""Metrics and pages: what Prometheus and people read is what the Node says, and what has happened."""

from __future__ import annotations

import json
from typing import Any

from pynvml import NVML_ERROR_IN_USE

from mig_manager import __version__
from mig_manager.daemon.measures import MEASURES
from mig_manager.simulation.api.faults import Fault
from tests.daemon.conftest import MakeNode
from tests.daemon.node import GpuNode
from tests.daemon.pages import page, samples, scrape
from tests.daemon.workloads import by_hand, guard, unguard
from tests.deploy import promql

A100 = "NVIDIA A100-SXM4-80GB"


def status_page(node: GpuNode) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(page(node, "/status")[1])
    return found


def test_what_a_node_goes_through_is_to_be_scraped(make_node: MakeNode) -> None:
    node = make_node()
    node.start(MIG_MANAGER_DRIFT_INTERVAL="0.3")
    node.becomes("small")

    # Somebody is in the way, the driver refuses once, and the API server too.
    guard(node)
    node.cluster.gpus.fail("nvmlGpuInstanceDestroy", NVML_ERROR_IN_USE, times=1, gpu=1)
    node.cluster.api.faults.add(Fault("GET", "^/api/v1/pods.*watch=true", status=500))
    node.label("balanced")
    node.wait_event("EvictionBlocked", "web")
    node.eventually(lambda: status_page(node)["status"] == node.status, "the daemon to see what it has said")
    draining = samples(node)
    seen = scrape(node)
    assert seen["state pending"] == 1
    assert seen["state success"] == 0
    assert seen["wanted_layout_info balanced"] == 1
    assert seen["current_layout_info small"] == 1
    assert seen["phase_info Draining"] == 1
    assert seen["cordoned"] == 1
    assert page(node, "/livez")[0] == 200
    under_way = status_page(node)
    assert (under_way["node"], under_way["layout"], under_way["phase"]) == (
        node.cluster.node,
        "balanced",
        "Draining",
    )
    assert len(under_way["plan"]["gpus"][0]["keep"]) == 2
    unguard(node)
    assert node.ended("balanced")["state"] == "success"

    node.becomes("nonsense", "failed")
    node.eventually(lambda: scrape(node)["runs_total UnknownLayout failed"] == 1, "the run to be counted")
    node.eventually(lambda: scrape(node)["state failed"] == 1, "the daemon to see what it has said")
    seen = scrape(node)
    assert seen["runs_total success"] == 2
    assert seen["run_duration_seconds_count success"] == 2
    assert seen["phase_duration_seconds_count Draining"] == 1
    assert seen["pods_evicted_total"] == 1
    assert seen["eviction_retries_total"] >= 1
    assert seen["instances_total created"] == 14 + 4
    assert seen["instances_total destroyed"] == 10
    assert seen["instances_total kept"] == 4
    assert seen["gpu_changes_total 0"] == seen["gpu_changes_total 1"] == 2
    assert seen["nvml_errors_total nvmlGpuInstanceDestroy NVML_ERROR_IN_USE"] == 1
    assert seen["api_errors_total 429 POST"] >= 1
    assert seen["watch_restarts_total pods"] == 1
    assert "phase_info Draining" not in seen
    assert seen["drift"] == seen["cordoned"] == seen["waiting_for_slot"] == 0
    assert seen[f"gpus on {A100}"] == 2
    assert seen[f"gpu_instances {A100} 1g.10gb"] == 4
    assert seen[f"build_info {__version__}"] == 1

    node.becomes("balanced")
    by_hand(node, "destroy", "1g.10gb:2")
    node.eventually(lambda: scrape(node)["drift"] == 1, "the drift to be said")
    assert page(node, "/readyz") == (200, "ok\n")
    assert status_page(node)["plan"] is None

    there = {each.name: frozenset(each.labels) for each in (*draining, *samples(node))}
    assert [each.name for each in MEASURES if not {each.name, f"{each.name}_bucket"} & set(there)] == []
    assert [
        each.name
        for each in MEASURES
        if there.get(each.name, there.get(f"{each.name}_sum")) != frozenset(each.labels)
    ] == []
    promql.check(there)
