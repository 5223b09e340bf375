"""The kubelet's PodResources service: gRPC on a unix socket, with the kubelet's own limits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

import grpc
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message

from mig_manager.cluster.podresources_proto import MESSAGES, METHODS, SERVICE
from mig_manager.simulation.node.claims import ClaimedDevice
from mig_manager.simulation.node.devices import ContainerDevices
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import is_sidecar

Answers = Mapping[str, Callable[[], Object]]
"""By method: what gives its answer, as protobuf's JSON with the field names of the .proto file."""


class Devices(Protocol):
    """What the service reads; a Kubelet has it."""

    def active_pods(self) -> tuple[Object, ...]:
        """The pods that were admitted and have not ended."""
        ...

    def allocations(self) -> tuple[ContainerDevices, ...]:
        """Which container holds which devices."""
        ...

    def claimed_devices(self) -> tuple[ClaimedDevice, ...]:
        """Which container holds which devices by a ResourceClaim."""
        ...

    def allocatable_devices(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of all healthy devices by resource name."""
        ...


class RateLimit:
    """A token bucket: so many calls a second, and so many at once. The defaults are the kubelet's."""

    def __init__(self, per_second: float = 100.0, burst: int = 10) -> None:
        self._per_second = per_second
        self._burst = burst
        self._tokens = float(burst)
        self._at = time.monotonic()
        self._lock = threading.Lock()

    def allow(self) -> bool:
        """Whether a call may pass now."""
        with self._lock:
            now = time.monotonic()
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._per_second)
            self._at = now
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


class PodResourcesServer:
    """Serves from `start` to `stop`, and any number of times. A start replaces the socket, as the kubelet's does."""

    def __init__(self, answers: Answers, socket: Path, *, limit: RateLimit | None = None) -> None:
        """The directory of `socket` is made if it is not there. A method without an answer is not served."""
        self.socket = socket
        self._answers = answers
        self._limit = limit or RateLimit()
        self._server: grpc.Server | None = None

    def start(self) -> None:
        """Begin to serve.

        Raises:
            OSError: the socket cannot be made, such as for a path of more than some 100 bytes.
        """
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        server = grpc.server(ThreadPoolExecutor(2, thread_name_prefix="pod-resources"))
        handlers = {name: self._handler(name) for name in self._answers}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        try:
            server.add_insecure_port(f"unix:{quote(str(self.socket))}")
        except RuntimeError as error:
            raise OSError(f"no unix socket at {self.socket}: {error}") from error
        server.start()
        self._server = server

    def stop(self) -> None:
        """End; the socket is gone then."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(grace=None).wait()
            self.socket.unlink(missing_ok=True)

    def _handler(self, method: str) -> grpc.RpcMethodHandler[Message, Message]:
        request, response = (MESSAGES[name] for name in METHODS[method])

        def answer(_: Message, context: grpc.ServicerContext) -> Message:
            if not self._limit.allow():
                context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
            return ParseDict(self._answers[method](), response())

        return grpc.unary_unary_rpc_method_handler(
            answer,
            request_deserializer=request.FromString,
            response_serializer=response.SerializeToString,
        )


def answers_of(devices: Devices) -> Answers:
    """What a kubelet answers."""
    return {
        "List": lambda: _listed(devices),
        "GetAllocatableResources": lambda: _allocatable(devices),
    }


def _listed(devices: Devices) -> Object:
    """Every active pod, also without any device. Of init containers only those that stay are listed."""
    held: dict[tuple[str, str], list[Object]] = {}
    for one in devices.allocations():
        entries = [_entry(one.resource, device) for device in one.devices]
        held.setdefault((one.pod_uid, one.container), []).extend(entries)
    claimed: dict[tuple[str, str], list[Object]] = {}
    for each in devices.claimed_devices():
        found = {"driver_name": each.driver, "pool_name": each.pool, "device_name": each.device}
        claimed.setdefault((each.pod_uid, each.container), []).append({"claim_resources": [found]})
    return {
        "pod_resources": [
            {
                "name": pod["metadata"]["name"],
                "namespace": pod["metadata"]["namespace"],
                "containers": [
                    {
                        "name": container["name"],
                        "devices": held.get((pod["metadata"]["uid"], container["name"]), []),
                        "dynamic_resources": claimed.get((pod["metadata"]["uid"], container["name"]), []),
                    }
                    for container in (
                        *filter(is_sidecar, pod["spec"].get("initContainers") or []),
                        *pod["spec"]["containers"],
                    )
                ],
            }
            for pod in devices.active_pods()
        ]
    }


def _allocatable(devices: Devices) -> Object:
    offered = devices.allocatable_devices()
    return {"devices": [_entry(resource, one) for resource, ids in offered.items() for one in ids]}


def _entry(resource: str, device: str) -> Object:
    """The kubelet gives each device an entry of its own."""
    return {"resource_name": resource, "device_ids": [device]}
