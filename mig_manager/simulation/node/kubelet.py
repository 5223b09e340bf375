"""The kubelet of one node: its Node object, the pods bound to it, and their devices."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from functools import partial
from itertools import count

from mig_manager.simulation.delays import Delays
from mig_manager.simulation.loop import Loop
from mig_manager.simulation.node.claims import ClaimedDevice, ClaimManager
from mig_manager.simulation.node.containers import Ends, NodeServices, Programs
from mig_manager.simulation.node.devices import AllocationError, ContainerDevices, DeviceManager
from mig_manager.simulation.node.hardware import Hardware
from mig_manager.simulation.node.podworker import PodWorker, RejectedError
from mig_manager.simulation.node.status import NodeStatus
from mig_manager.simulation.objects import Change, Labels, Object, Store
from mig_manager.simulation.podspec import fits_node, quantity, requests
from mig_manager.simulation.recorder import Recorder
from mig_manager.simulation.resources import NODES, PODS


class Kubelet:
    """Runs what is bound to its node.

    Everything happens in the loop that it shares with the controllers. Reading from another thread goes
    through `active_pods`, `allocations`, `claimed_devices` and `allocatable_devices`, with which a PodResources
    server answers.
    """

    def __init__(
        self,
        store: Store,
        hardware: Hardware,
        loop: Loop,
        *,
        name: str,
        delays: Delays,
        programs: Programs,
        labels: Labels,
        address: str = "192.0.2.11",
    ) -> None:
        """`programs`: beside `true` and `false`; `labels`: what the new Node is labelled with."""
        self.devices = DeviceManager(
            loop, forget_s=delays.plugin_forget, changed=lambda: self.status.changed()
        )
        self.services = NodeServices(
            name,
            store,
            hardware,
            loop,
            delays,
            self.devices,
            ClaimManager(store),
            Recorder(store, "kubelet", name),
        )
        self.status = NodeStatus(self.services, labels=labels, address=address)
        self._programs: Programs = {"true": partial(Ends, 0), "false": partial(Ends, 1), **programs}
        self._address = address
        self._addresses = count()
        self._workers: dict[str, PodWorker] = {}
        self._unschedulable = False
        self._runs = False

    def start(self) -> None:
        """Register the node and take on the pods that are bound to it. In the loop."""
        self._runs = True
        self.status.register()
        for pod in self.services.store.snapshot(PODS)[0]:
            self._pod_changed(pod)

    def power_off(self) -> None:
        """The node goes down, and all of its pods with it, until the next `start`. In the loop."""
        self._runs = False
        for worker in self._workers.values():
            worker.power_off()
        self._workers = {}
        self.devices.restart()
        self.services.claims.restart()
        self.status.stop()

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if not self._runs:
            return
        if change.resource == PODS:
            if change.type == "DELETED":
                worker = self._workers.get(change.object["metadata"]["uid"])
                if worker is not None:
                    worker.deleted()
            else:
                self._pod_changed(change.object)
        elif change.resource == NODES and change.object["metadata"]["name"] == self.services.name:
            self._node_changed(change)

    def active_pods(self) -> tuple[Object, ...]:
        """The pods that were admitted and have not ended. From any thread."""
        return self.services.loop.call(
            lambda: tuple(each.pod for each in self._workers.values() if each.active)
        )

    def allocations(self) -> tuple[ContainerDevices, ...]:
        """Which container holds which devices. From any thread."""
        return self.services.loop.call(self.devices.held)

    def claimed_devices(self) -> tuple[ClaimedDevice, ...]:
        """Which container holds which devices by a ResourceClaim. From any thread."""
        return self.services.loop.call(self.services.claims.held)

    def allocatable_devices(self) -> Mapping[str, tuple[str, ...]]:
        """Ids of all healthy devices by resource name. From any thread."""
        return self.services.loop.call(self.devices.allocatable)

    def _pod_changed(self, pod: Object) -> None:
        if pod["spec"].get("nodeName") != self.services.name:
            return
        uid = pod["metadata"]["uid"]
        worker = self._workers.get(uid)
        if worker is None:
            worker = PodWorker(
                self.services,
                self._programs,
                pod,
                admit=self._admit,
                gone=self._forget,
                host_address=self._address,
                pod_address=f"10.244.0.{next(self._addresses) % 250 + 2}",
            )
            self._workers[uid] = worker
            worker.start()
        worker.update(pod)

    def _forget(self, worker: PodWorker) -> None:
        self._workers.pop(worker.uid, None)

    def _node_changed(self, change: Change) -> None:
        if change.type == "DELETED":
            return
        unschedulable = bool(change.object["spec"].get("unschedulable"))
        if unschedulable != self._unschedulable:
            self._unschedulable = unschedulable
            reason = "NodeNotSchedulable" if unschedulable else "NodeSchedulable"
            self.services.recorder.record(
                change.object, "Normal", reason, f"Node {self.services.name} status is now: {reason}"
            )

    def _admit(self, pod: Object) -> None:
        """Give the pod its devices, and check the rest of what it asks for against what is free.

        The device manager comes first, as in the real kubelet, so that a missing device is an
        UnexpectedAdmissionError and not an OutOf... one.
        """
        try:
            self.devices.allocate(pod)
        except AllocationError as error:
            message = f"Pod was rejected: Allocate failed due to {error}, which is unexpected"
            raise RejectedError("UnexpectedAdmissionError", message) from error
        try:
            self._check_node(pod)
        except RejectedError:
            self.devices.free(pod["metadata"]["uid"])
            raise

    def _check_node(self, pod: Object) -> None:
        node = self.services.store.get(NODES, None, self.services.name)
        if node is None:
            return
        if not fits_node(pod, node):
            raise RejectedError("NodeAffinity", "Pod was rejected: Predicate NodeAffinity failed")
        allocatable = node["status"]["allocatable"]
        others = [each.pod for each in self._workers.values() if each.active and each.pod is not pod]
        managed = self.devices.amounts()
        for resource, wanted in {**requests(pod), "pods": Decimal(1)}.items():
            if resource in managed or resource not in allocatable:
                continue
            used = sum((requests(each).get(resource, Decimal(0)) for each in others), Decimal(0))
            if resource == "pods":
                used = Decimal(len(others))
            room = quantity(allocatable[resource])
            if wanted and used + wanted > room:
                raise RejectedError(
                    f"OutOf{resource}",
                    f"Pod was rejected: Node didn't have enough resource: {resource}, "
                    f"requested: {wanted}, used: {used}, capacity: {room}",
                )
