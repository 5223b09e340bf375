"""The Node object as the kubelet registers it and keeps its status."""

from __future__ import annotations

import time
import uuid
from datetime import UTC, datetime

from mig_manager.simulation.loop import Timer
from mig_manager.simulation.node.containers import NodeServices
from mig_manager.simulation.objects import Labels, Object
from mig_manager.simulation.recorder import timestamp
from mig_manager.simulation.resources import LEASES, NODES

_CONDITIONS = (
    ("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
    ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
)
_LEASES = "kube-node-lease"
_LEASE_PERIOD_S = 10.0
_MACHINE = {
    "cpu": "64",
    "memory": "528280904Ki",
    "ephemeral-storage": "1843269236Ki",
    "hugepages-1Gi": "0",
    "hugepages-2Mi": "0",
    "pods": "110",
}
_NODE_INFO = {
    "architecture": "amd64",
    "operatingSystem": "linux",
    "kernelVersion": "6.8.0-60-generic",
    "osImage": "Ubuntu 24.04.2 LTS",
    "containerRuntimeVersion": "containerd://2.1.4",
    "kubeletVersion": "v1.34.1",
    "kubeProxyVersion": "",
}


class NodeStatus:
    """Writes the Node's status at its sync times, and only what has changed.

    The real kubelet looks every 10 s (`Delays.node_sync`), so that capacity and allocatable show old numbers
    for up to that long; a status that does not change is written every 5 min (`Delays.node_report`), which is
    when the heartbeat times move. The times at which it would look and find nothing are left out here.
    """

    def __init__(self, services: NodeServices, *, labels: Labels, address: str) -> None:
        self._services = services
        self._labels = labels
        self._address = address
        self._machine_id = uuid.uuid4().hex
        self._first = 0.0
        self._sync: Timer | None = None
        self._report: Timer | None = None
        self._lease: Timer | None = None

    def register(self) -> None:
        """Create the Node, as a starting kubelet does; of an existing one only the status is written."""
        self._first = time.monotonic()
        name = self._services.name
        labels = {
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": name,
            "kubernetes.io/os": "linux",
        }
        if self._services.store.get(NODES, None, name) is None:
            self._services.store.create(
                NODES,
                {
                    "metadata": {"name": name, "labels": {**labels, **self._labels}},
                    "spec": {"podCIDR": "10.244.0.0/24", "providerID": f"simulated://{name}"},
                    "status": self._write({}),
                },
            )
        self._look()
        self._renew()

    def stop(self) -> None:
        """Write nothing any more, until it registers again."""
        for timer in (self._sync, self._report, self._lease):
            if timer is not None:
                timer.cancel()
        self._sync = self._report = self._lease = None

    def changed(self) -> None:
        """What the node offers has changed: write it at the next sync time."""
        if self._sync is not None:
            return
        period = self._services.delays.node_sync
        wait = 0.0
        if period > 0:
            wait = period - (time.monotonic() - self._first) % period
        self._sync = self._services.loop.after(wait, self._look)

    def _look(self) -> None:
        self._sync = None
        written = False

        def change(node: Object) -> Object | None:
            nonlocal written
            old = node.get("status") or {}
            status = self._write(old)
            written = self._report is None or _without_heartbeats(status) != _without_heartbeats(old)
            node["status"] = status
            return node if written else None

        self._services.store.update(NODES, None, self._services.name, change)
        self._services.devices.written()
        if written:
            if self._report is not None:
                self._report.cancel()
            self._report = self._services.loop.after(self._services.delays.node_report, self._heartbeat)

    def _renew(self) -> None:
        """Say that the node lives, every 10 s, in its Lease; the Node itself does not change."""
        store, name = self._services.store, self._services.name
        renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}
        if store.update(LEASES, _LEASES, name, lambda lease: {**lease, "spec": spec}) is None:
            store.create(LEASES, {"metadata": {"name": name, "namespace": _LEASES}, "spec": spec})
        self._lease = self._services.loop.after(_LEASE_PERIOD_S, self._renew)

    def _heartbeat(self) -> None:
        self._report = None
        self._look()

    def _write(self, old: Object) -> Object:
        """The status of now on top of the old one: a resource that was known stays, with 0 in the end."""
        capacity = {**(old.get("capacity") or {}), **_MACHINE}
        allocatable = {**(old.get("allocatable") or {}), **_MACHINE}
        for resource, (total, healthy) in self._services.devices.amounts().items():
            capacity[resource] = str(total)
            allocatable[resource] = str(healthy)
        now = timestamp()
        before = {each["type"]: each for each in old.get("conditions") or []}
        for kind, value, reason, message in _CONDITIONS:
            known = before.get(kind)
            since = known["lastTransitionTime"] if known and known["status"] == value else now
            before[kind] = {
                "type": kind,
                "status": value,
                "lastHeartbeatTime": now,
                "lastTransitionTime": since,
                "reason": reason,
                "message": message,
            }
        return {
            **old,
            "capacity": capacity,
            "allocatable": allocatable,
            "conditions": list(before.values()),
            "addresses": [
                {"type": "InternalIP", "address": self._address},
                {"type": "Hostname", "address": self._services.name},
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                **_NODE_INFO,
                "machineID": self._machine_id,
                "systemUUID": str(uuid.UUID(self._machine_id)),
                "bootID": self._services.hardware.boot_id,
            },
        }


def _without_heartbeats(status: Object) -> Object:
    conditions = [
        {key: value for key, value in each.items() if key != "lastHeartbeatTime"}
        for each in status.get("conditions") or []
    ]
    return {**status, "conditions": conditions}
