"""ResourceClaims and ResourceSlices in every version that is understood."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.cluster.claims import ResourceSlice, claimed_devices, current_devices
from mig_manager.cluster.objects import Pod

JsonObject = dict[str, Any]


def resource_slice(generation: int, *devices: JsonObject, pool: str = "node-1") -> ResourceSlice:
    spec = {"driver": "gpu.nvidia.com", "pool": {"name": pool, "generation": generation}, "devices": devices}
    return ResourceSlice.from_json({"metadata": {"name": "s"}, "spec": spec})


def described(**attributes: str) -> JsonObject:
    return {"attributes": {name: {"string": value} for name, value in attributes.items()}}


@pytest.mark.parametrize(
    ("device", "uuid"),
    [
        (described(type="mig", uuid="MIG-a"), "MIG-a"),
        ({"basic": described(type="mig", uuid="MIG-a")}, "MIG-a"),
        ({"attributes": {"gpu.nvidia.com/uuid": {"string": "GPU-a"}}}, "GPU-a"),
        (described(type="mig", uuid="mig-0a"), "MIG-0a"),
        (described(type="mig", profile="1g.10gb"), None),
        ({}, None),
    ],
)
def test_a_device_is_told_by_its_uuid(device: JsonObject, uuid: str | None) -> None:
    assert current_devices([resource_slice(1, {"name": "gpu-0", **device})]) == {"node-1/gpu-0": uuid}


def test_only_the_latest_generation_of_a_pool_is_true() -> None:
    old = {"name": "gpu-0", **described(uuid="GPU-old")}
    new = {"name": "gpu-1", **described(uuid="GPU-new")}
    other = {"name": "gpu-0", **described(uuid="GPU-other")}
    found = current_devices(
        [resource_slice(2, new), resource_slice(1, old), resource_slice(1, other, pool="b")]
    )
    assert found == {"node-1/gpu-1": "GPU-new", "b/gpu-0": "GPU-other"}


def test_only_devices_of_the_gpu_driver_count() -> None:
    results = [
        {"driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0", "request": "r"},
        {"driver": "compute-domain.nvidia.com", "pool": "node-1", "device": "channel-0", "request": "r"},
    ]
    claim = {"status": {"allocation": {"devices": {"results": results}}}}
    assert claimed_devices(claim) == ("node-1/gpu-0",)
    assert claimed_devices({"status": {}}) == claimed_devices({}) == ()


def test_the_claims_of_a_pod_are_named_made_from_templates_or_made_for_extended_resources() -> None:
    pod = Pod.from_json(
        {
            "metadata": {"name": "job", "namespace": "ml", "uid": "u"},
            "spec": {
                "resourceClaims": [
                    {"name": "a", "resourceClaimName": "direct"},
                    {"name": "b", "resourceClaimTemplateName": "template"},
                    {"name": "c", "resourceClaimTemplateName": "not-made-yet"},
                ],
                "containers": [
                    {"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1", "x.org/nic": "1"}}}
                ],
            },
            "status": {
                "resourceClaimStatuses": [
                    {"name": "b", "resourceClaimName": "job-b-1"},
                    {"name": "unused"},
                ],
                "extendedResourceClaimStatus": {
                    "resourceClaimName": "job-extended-1",
                    "requestMappings": [{"containerName": "main", "resourceName": "nvidia.com/gpu"}],
                },
            },
        }
    )
    assert pod.claims == {"direct", "job-b-1", "job-extended-1"}
    assert pod.resources == {"x.org/nic"}
