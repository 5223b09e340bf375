"""Which container holds which device, by the kubelet of this node itself; the API server does not know."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from mig_manager.cluster.pods import GPU_RESOURCES, is_gpu_resource
from mig_manager.errors import MigManagerError, Reason

SOCKET = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
"""Where a kubelet serves, unless its root directory was moved."""

_UUIDS = ("GPU-", "MIG-")
"""How the ids of GPUs and MIG devices begin."""
_START_S = 10.0
"""Seconds that the reading process may take to start, on a busy machine."""


class PodResourcesError(MigManagerError):
    """The kubelet could not be asked. Nothing is known then of who holds which device."""

    def __init__(self, message: str) -> None:
        super().__init__(Reason.API_ERROR, message)

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.message,))


@dataclass(frozen=True, slots=True)
class PodDevices:
    """Devices that one container holds. The kubelet knows no uid here; a pod goes by its name."""

    namespace: str
    name: str
    """Of the pod."""
    container: str
    resource: str
    """`nvidia.com/mig-1g.10gb`; for a device of a ResourceClaim the driver, such as `gpu.nvidia.com`."""
    device_ids: tuple[str, ...]
    """UUIDs of GPUs or MIG devices, without the replica that time-slicing adds (`GPU-...::3`), each once. For
    a ResourceClaim `pool/device`, as the driver named them in its ResourceSlices."""


def find_socket(host_root: Path | None = None) -> Path:
    """The kubelet's socket: as this process sees it, or below the mount point of the host's root.

    Gives the usual place if neither is there. What decides is the directory: the socket itself is away while
    a kubelet restarts.
    """
    below = [] if host_root is None else [host_root / SOCKET.relative_to("/")]
    return next((path for path in (SOCKET, *below) if path.parent.is_dir()), SOCKET)


class PodResources:
    """Asks the kubelet, through a process that is started for the first question and ends with `close`.

    Use as a context manager. One question at a time; others wait.
    """

    def __init__(self, socket: Path, *, timeout_s: float = 5.0) -> None:
        """Nothing is opened yet.

        Args:
            socket: mount its directory into a container, not the socket: each start of the kubelet makes a
                new one.
            timeout_s: how long a kubelet may take to answer, or to come back from a restart.
        """
        self.socket = socket
        self.timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self) -> None:
        """Start the reading process ahead of the first question, if there is a kubelet to ask at all."""
        if self.socket.parent.is_dir():
            with self._lock, suppress(OSError):
                if self._connection is None:
                    self._connection = self._start()

    def allocations(self) -> tuple[PodDevices, ...]:
        """Every device that a container holds, of all resources.

        Not in it: what init containers hold that end before the others start; and pods that have ended.

        Raises:
            PodResourcesError: the kubelet cannot be asked.
        """
        return tuple(
            found
            for pod in self._ask("List").get("pod_resources", ())
            for container in pod.get("containers", ())
            for found in _held(pod, container)
        )

    def offered(self, patterns: Sequence[str] = GPU_RESOURCES) -> Mapping[str, tuple[str, ...]]:
        """Ids of all healthy devices by resource, free or not, replicas and all.

        Of the resources that match, and of all others whose devices are GPUs by their ids: a device plugin may
        rename what it offers.

        Raises:
            PodResourcesError: the kubelet cannot be asked.
        """
        found: dict[str, dict[str, None]] = {}
        for one in self._ask("GetAllocatableResources").get("devices", ()):
            name, ids = one.get("resource_name", ""), one.get("device_ids", ())
            if is_gpu_resource(name, patterns) or any(each.startswith(_UUIDS) for each in ids):
                found.setdefault(name, {}).update(dict.fromkeys(ids))
        return {name: tuple(ids) for name, ids in found.items()}

    def close(self) -> None:
        """End the reading process, if there is one. A later question starts another."""
        with self._lock:
            self._end()

    def _ask(self, method: str) -> Mapping[str, Any]:
        if not self.socket.parent.is_dir():
            raise self._unavailable("its directory is not there")
        with self._lock:
            answer, problem = self._exchange(method)
        if problem is not None:
            raise self._unavailable(problem)
        return answer

    def _exchange(self, method: str) -> tuple[Mapping[str, Any], str | None]:
        try:
            if self._connection is None:
                self._connection = self._start()
            self._connection.send((str(self.socket), method, self.timeout_s))
            if self._connection.poll(self.timeout_s + _START_S):
                answer, problem = self._connection.recv()
                return answer or {}, problem
            problem = f"no answer within {self.timeout_s + _START_S:g} s"
        except EOFError:
            problem = "the process that asks it has died"
        except OSError as error:
            problem = f"the process that asks it: {error.strerror or error}"
        self._end()
        return {}, problem

    def _start(self) -> Connection:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "mig_manager.cluster.podreader", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        return Connection(ours.detach())

    def _end(self) -> None:
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.wait(_START_S)

    def _unavailable(self, why: str) -> PodResourcesError:
        return PodResourcesError(f"The kubelet's PodResources cannot be read at {self.socket}: {why}.")


def _held(pod: Mapping[str, Any], container: Mapping[str, Any]) -> Iterable[PodDevices]:
    # The kubelet lists each device alone, and once a NUMA node; together they are one thing.
    by_resource: dict[str, dict[str, None]] = {}
    for entry in container.get("devices", ()):
        ids = by_resource.setdefault(entry.get("resource_name", ""), {})
        ids.update((_plain(name), None) for name in entry.get("device_ids", ()))
    for dynamic in container.get("dynamic_resources", ()):
        for claim in dynamic.get("claim_resources", ()):
            device = f"{claim.get('pool_name', '')}/{claim.get('device_name', '')}"
            by_resource.setdefault(claim.get("driver_name", ""), {})[device] = None
    for resource, names in by_resource.items():
        yield PodDevices(
            pod.get("namespace", ""), pod.get("name", ""), container.get("name", ""), resource, tuple(names)
        )


def plain_ids(offered: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """UUIDs of the devices that `PodResources.offered` gives, each once however often it is shared."""
    return frozenset(_plain(name) for ids in offered.values() for name in ids)


def _plain(device_id: str) -> str:
    return device_id.partition("::")[0]
