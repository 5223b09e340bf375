"""The audit of what the daemon writes finds what is not its own."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.simulation.api.faults import Request
from tests.daemon.audit import foreign_writes

MERGE = "application/merge-patch+json"


def write(body: Any, *, name: str = "gpu-1", method: str = "PATCH", content_type: str = MERGE) -> Request:
    path = f"/api/v1/nodes/{name}"
    return Request(
        method, path, {}, 200, "mig-manager", content_type, "", "", "", "nodes", "", "", name, body
    )


def test_own_keys_are_fine() -> None:
    meta = {
        "labels": {"nvidia.com/mig.config.state": "pending", "nvidia.com/gpu.deploy.dcgm": None},
        "annotations": {"mig-manager/journal": "{}"},
        "resourceVersion": "7",
    }
    assert foreign_writes([write({"metadata": meta, "spec": {"unschedulable": True}})], "gpu-1") == []


@pytest.mark.parametrize(
    "request_",
    [
        write({"metadata": {"labels": {"nvidia.com/mig.config": "mine"}}}),
        write({"metadata": {"annotations": {"theirs": "x"}}}),
        write({"metadata": {"finalizers": []}}),
        write({"spec": {"taints": []}}),
        write({"status": {"capacity": {}}}),
        write({}, name="gpu-2"),
        write({}, method="PUT"),
        write({}, content_type="application/json-patch+json"),
    ],
)
def test_foreign_keys_are_found(request_: Request) -> None:
    assert len(foreign_writes([request_], "gpu-1")) == 1
