"""Asking a kubelet over its real protocol, whatever state it is in."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from mig_manager.cluster.podresources import (
    SOCKET,
    PodDevices,
    PodResources,
    PodResourcesError,
    find_socket,
    plain_ids,
)
from mig_manager.cluster.podresources_proto import MESSAGES
from mig_manager.simulation.node.podresources import PodResourcesServer, RateLimit

JsonObject = dict[str, Any]


def device(resource: str, *ids: str) -> JsonObject:
    return {"resource_name": resource, "device_ids": list(ids)}


def holding(pod: str, *devices: JsonObject, claims: tuple[str, ...] = ()) -> JsonObject:
    """A pod in namespace ml with one container. Claims: `driver/pool/device`."""
    claimed = [
        dict(zip(("driver_name", "pool_name", "device_name"), c.split("/"), strict=True)) for c in claims
    ]
    dynamic = [{"claim_resources": claimed}] if claims else []
    container = {"name": "main", "devices": list(devices), "dynamic_resources": dynamic}
    return {"namespace": "ml", "name": pod, "containers": [container]}


@contextmanager
def serving(
    directory: Path,
    *pods: JsonObject,
    allocatable: tuple[JsonObject, ...] | None = (),
    limit: RateLimit | None = None,
) -> Iterator[PodResourcesServer]:
    """A kubelet. `allocatable` None: one that is too old to tell."""
    answers: dict[str, Any] = {"List": lambda: {"pod_resources": list(pods)}}
    if allocatable is not None:
        answers["GetAllocatableResources"] = lambda: {"devices": list(allocatable)}
    server = PodResourcesServer(answers, directory / "pod-resources" / "kubelet.sock", limit=limit)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[PodResourcesServer]:
    with serving(tmp_path, holding("job", device("nvidia.com/gpu", "GPU-a"))) as server:
        yield server


JOB = PodDevices("ml", "job", "main", "nvidia.com/gpu", ("GPU-a",))


def test_each_container_is_given_with_its_devices(tmp_path: Path) -> None:
    pods = (
        holding("plain"),
        # A device that belongs to two NUMA nodes comes twice.
        holding("two", *[device("nvidia.com/gpu", uuid) for uuid in ("GPU-a", "GPU-b", "GPU-a")]),
        holding("shared", device("nvidia.com/mig-1g.10gb.shared", "MIG-a::12"), device("x.org/nic", "eth0")),
        holding("claim", claims=("gpu.nvidia.com/node-1/gpu-0", "gpu.nvidia.com/node-1/gpu-1")),
    )
    with serving(tmp_path, *pods) as server, PodResources(server.socket) as kubelet:
        found = kubelet.allocations()
    assert found == (
        PodDevices("ml", "two", "main", "nvidia.com/gpu", ("GPU-a", "GPU-b")),
        PodDevices("ml", "shared", "main", "nvidia.com/mig-1g.10gb.shared", ("MIG-a",)),
        PodDevices("ml", "shared", "main", "x.org/nic", ("eth0",)),
        PodDevices("ml", "claim", "main", "gpu.nvidia.com", ("node-1/gpu-0", "node-1/gpu-1")),
    )


def test_what_is_offered_is_told_by_resource_replicas_and_renamed_ones_too(tmp_path: Path) -> None:
    offered = (
        device("nvidia.com/gpu.shared", "GPU-a::0"),
        device("nvidia.com/gpu.shared", "GPU-a::1"),
        device("nvidia.com/mig-1g.10gb", "MIG-a"),
        device("nvidia.com/mig-1g.10gb", "MIG-a"),
        device("x.org/nic", "eth0"),
        device("acme.io/a100", "GPU-b"),
        device("acme.io/vgpu", "opaque"),
    )
    named = {
        "nvidia.com/gpu.shared": ("GPU-a::0", "GPU-a::1"),
        "nvidia.com/mig-1g.10gb": ("MIG-a",),
        "acme.io/a100": ("GPU-b",),
    }
    with serving(tmp_path, allocatable=offered) as server, PodResources(server.socket) as kubelet:
        assert kubelet.offered() == named
        assert kubelet.offered(("acme.io/*",)) == {**named, "acme.io/vgpu": ("opaque",)}
    assert plain_ids(named) == {"GPU-a", "GPU-b", "MIG-a"}


def test_messages_are_read_as_the_kubelet_writes_them() -> None:
    def field(number: int, content: bytes) -> bytes:
        return bytes([number << 3 | 2, len(content)]) + content

    # With what is left out of the messages here: topology (3), cpu_ids (3), memory (4), claim names (2, 3).
    devices = field(1, b"nvidia.com/gpu") + field(2, b"GPU-a") + field(2, b"GPU-b") + field(3, field(1, b""))
    claim = field(2, b"gpu.nvidia.com") + field(3, b"pool") + field(4, b"gpu-0") + field(1, field(1, b"cdi"))
    dynamic = field(2, b"claim") + field(3, b"ml") + field(4, claim)
    container = (
        field(1, b"main") + field(2, devices) + field(3, b"\x01\x02") + field(4, b"") + field(5, dynamic)
    )
    pod = field(1, b"job") + field(2, b"ml") + field(3, container)

    listed = MESSAGES["ListPodResourcesResponse"].FromString(field(1, pod))
    expected = holding(
        "job", device("nvidia.com/gpu", "GPU-a", "GPU-b"), claims=("gpu.nvidia.com/pool/gpu-0",)
    )
    assert as_json(listed) == {"pod_resources": [expected]}
    allocatable = MESSAGES["AllocatableResourcesResponse"].FromString(field(1, devices))
    assert as_json(allocatable) == {"devices": [device("nvidia.com/gpu", "GPU-a", "GPU-b")]}


def as_json(message: Any) -> Mapping[str, Any]:
    from google.protobuf.json_format import MessageToDict

    return MessageToDict(message, preserving_proto_field_name=True)


def test_a_kubelet_without_the_service_is_told_at_once(tmp_path: Path) -> None:
    socket = tmp_path / "pod-resources" / "kubelet.sock"
    with PodResources(socket, timeout_s=60) as kubelet:
        with pytest.raises(
            PodResourcesError, match=r"cannot be read at .*kubelet\.sock: its directory is not"
        ):
            kubelet.allocations()
        assert children() == []


def test_a_kubelet_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "pod-resources").mkdir()
    socket = tmp_path / "pod-resources" / "kubelet.sock"
    none = pytest.raises(PodResourcesError, match="no answer within 2 s")
    with PodResources(socket, timeout_s=2) as kubelet, none:
        kubelet.offered()


def test_an_old_kubelet_lists_allocations_only(tmp_path: Path) -> None:
    with serving(tmp_path, allocatable=None) as server, PodResources(server.socket) as kubelet:
        with pytest.raises(PodResourcesError, match="UNIMPLEMENTED"):
            kubelet.offered()
        assert kubelet.allocations() == ()


def test_a_kubelet_that_restarts_is_waited_for(kubelet: PodResourcesServer) -> None:
    with PodResources(kubelet.socket, timeout_s=20) as resources:
        assert resources.allocations() == (JOB,)
        kubelet.stop()
        assert not kubelet.socket.exists()
        back = threading.Timer(0.2, kubelet.start)
        back.start()
        assert resources.allocations() == (JOB,)
        back.join()
        # The socket is another one now, also for a caller that never saw it away.
        kubelet.start()
        assert resources.allocations() == (JOB,)


def test_the_rate_limit_of_the_kubelet_only_delays(tmp_path: Path) -> None:
    job = holding("job", device("nvidia.com/gpu", "GPU-a"))
    slow = RateLimit(per_second=4, burst=1)
    with serving(tmp_path, job, limit=slow) as server, PodResources(server.socket, timeout_s=20) as kubelet:
        assert [kubelet.allocations() for _ in range(3)] == [(JOB,)] * 3


def test_grpc_lives_in_another_process_and_only_while_it_is_needed(kubelet: PodResourcesServer) -> None:
    with PodResources(kubelet.socket) as resources:
        assert children() == []
        resources.allocations()
        (reader,) = children()
        resources.allocations()
        assert children() == [reader]
        reader.kill()
        reader.wait()
        with pytest.raises(PodResourcesError, match="process that asks it"):
            resources.allocations()
        assert resources.allocations() == (JOB,)
    assert children() == []


def children() -> list[psutil.Process]:
    return [each for each in psutil.Process().children() if "mig_manager.cluster.podreader" in each.cmdline()]


def test_the_socket_is_found_below_the_root_of_the_host(tmp_path: Path) -> None:
    if SOCKET.parent.exists():
        pytest.skip("a kubelet runs on this machine")
    assert find_socket() == SOCKET
    assert find_socket(tmp_path) == SOCKET
    below = tmp_path / "var/lib/kubelet/pod-resources"
    below.mkdir(parents=True)
    assert find_socket(tmp_path) == below / "kubelet.sock"
