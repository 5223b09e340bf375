"""What the kubelet does for one pod, from seeing it to taking it out of the API."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from mig_manager.simulation.conditions import with_conditions
from mig_manager.simulation.loop import Timer
from mig_manager.simulation.node.containers import (
    Container,
    NodeServices,
    Program,
    Programs,
    Workload,
    command,
)
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import behaviour, is_finished, seconds
from mig_manager.simulation.recorder import timestamp
from mig_manager.simulation.resources import PODS


class RejectedError(Exception):
    """The kubelet does not admit a pod."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class PodWorker:
    """Runs one pod that is bound to the node. All its methods run in the node's loop."""

    def __init__(
        self,
        services: NodeServices,
        programs: Programs,
        pod: Object,
        *,
        admit: Callable[[Object], None],
        gone: Callable[[PodWorker], None],
        host_address: str,
        pod_address: str,
    ) -> None:
        """`admit` raises RejectedError; `gone` is called once nothing of the pod is left on the node."""
        self.pod = pod
        self.uid: str = pod["metadata"]["uid"]
        self._services = services
        self._programs = programs
        self._admit = admit
        self._gone = gone
        self._host_address = host_address
        self._pod_address = pod_address
        self._phase = "Pending"
        self._reason: tuple[str, str] | None = None
        self._start_time = ""
        self._in_api = True
        self._ends_at: float | None = None
        self._ended = False
        self._killed = False
        self._timer: Timer | None = None
        spec = pod["spec"]
        self._init = [self._container(each, init=True) for each in spec.get("initContainers") or []]
        self._main = [self._container(each, init=False) for each in spec["containers"]]
        status = pod.get("status") or {}
        for known in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
            # Of an earlier boot of the node.
            for container in (*self._init, *self._main):
                if container.name == known["name"]:
                    container.restarts = known["restartCount"] + 1

    @property
    def active(self) -> bool:
        """Whether the pod was admitted and may still run something."""
        return bool(self._start_time) and not self._ended and self._phase not in ("Succeeded", "Failed")

    def start(self) -> None:
        """See the pod after the time that this takes."""
        if is_finished(self.pod):
            self._phase = self.pod["status"]["phase"]
        elif self._lost_for_good():
            self._phase, self._ended = "Failed", True
            for container in self._main:
                container.lost()
            self._write()
        else:
            self._later(self._services.delays.pod_notice, self._see)

    def _lost_for_good(self) -> bool:
        """Whether it ran on an earlier boot of the node, and may not be started again."""
        ran = (self.pod.get("status") or {}).get("phase") == "Running"
        return ran and self.pod["spec"].get("restartPolicy") == "Never"

    def power_off(self) -> None:
        """The node goes down: every process ends, and nobody writes anything."""
        if self._timer is not None:
            self._timer.cancel()
        self._ended = True
        for container in (*self._main, *self._init):
            container.stop(137)

    def update(self, pod: Object) -> None:
        """The pod changed in the API."""
        self.pod = pod
        if "deletionTimestamp" in pod["metadata"]:
            self._terminate(float(pod["metadata"].get("deletionGracePeriodSeconds") or 0))

    def deleted(self) -> None:
        """The pod is gone from the API; what still runs of it is ended as well."""
        self._in_api = False
        if self._ended:
            self._gone(self)
        else:
            self._terminate(float("inf"))

    def _see(self) -> None:
        self._start_time = (self.pod.get("status") or {}).get("startTime") or timestamp()
        try:
            self._admit(self.pod)
        except RejectedError as error:
            self._phase = "Failed"
            self._reason = (error.reason, str(error))
            self._services.recorder.record(self.pod, "Warning", error.reason, str(error))
            self._write()
            return
        self._write()
        self._later(seconds(self.pod, "start-seconds", self._services.delays.pod_start), self._proceed)

    def _proceed(self) -> None:
        """Start what can start: init containers one after the other, then the rest together."""
        if not self._services.claims.prepare(self.pod, self._prepare_again):
            message = "Failed to prepare dynamic resources: a DRA driver is not registered, or lacks a device"
            self._services.recorder.record(self.pod, "Warning", "FailedPrepareDynamicResources", message)
            return
        for container in self._init:
            if container.exit_code == 0 or (container.sidecar and container.is_ready):
                continue
            if container.fresh:
                container.start(self.pod)
            elif container.exit_code is not None:
                self._finish()
            return
        self._phase = "Running"
        for container in self._main:
            if container.fresh:
                container.start(self.pod)

    def _prepare_again(self) -> None:
        if self._ends_at is None:
            self._later(0, self._proceed)

    def _container_changed(self, container: Container) -> None:
        if self._ended:
            return
        if self._ends_at is None:
            if container.init and self._phase == "Pending":
                self._later(0, self._proceed)
            if all(each.exit_code is not None for each in self._main):
                self._finish()
                return
        self._write()

    def _finish(self) -> None:
        """All containers ended by themselves."""
        codes = [each.exit_code for each in (*self._init, *self._main)]
        self._phase = "Failed" if any(codes) else "Succeeded"
        self._release()
        self._services.claims.unprepare(self.uid, lambda: None)
        self._write()

    def _terminate(self, grace: float) -> None:
        now = time.monotonic()
        running = any(each.running for each in (*self._init, *self._main))
        if self._ends_at is None:
            needs = seconds(self.pod, "end-seconds", self._services.delays.pod_end)
            self._ends_at = now + (needs if running else 0.0)
            for container in (*self._init, *self._main):
                if container.running:
                    message = f"Stopping container {container.name}"
                    self._services.recorder.record(self.pod, "Normal", "Killing", message)
        self._killed = now + grace < self._ends_at
        self._ends_at = min(self._ends_at, now + grace)
        self._later(self._ends_at - now, self._end)

    def _end(self) -> None:
        stuck = behaviour(self.pod, "stuck") if self._in_api else None
        if stuck == "process":
            return
        if not self._ended:
            self._ended = True
            self._release()
            if self._phase not in ("Succeeded", "Failed"):
                codes = [each.exit_code for each in self._main]
                self._phase = "Failed" if any(codes) or None in codes else "Succeeded"
            self._write()
        if not self._services.claims.unprepare(self.uid, lambda: self._later(0, self._end)):
            return
        if stuck == "volume":
            return
        if not self._in_api:
            self._gone(self)
            return
        meta = self.pod["metadata"]
        if meta.get("finalizers"):
            self._services.store.delete(PODS, meta["namespace"], meta["name"], grace_seconds=0)
        else:
            self._services.store.remove(PODS, meta["namespace"], meta["name"], self.uid)

    def _write(self) -> None:
        """Bring the status in the API up to date."""
        meta = self.pod["metadata"]

        def change(pod: Object) -> Object | None:
            if pod["metadata"]["uid"] != self.uid:
                return None
            pod["status"] = self._status(pod.get("status") or {})
            return pod

        self._services.store.update(PODS, meta["namespace"], meta["name"], change)

    def _status(self, old: Object) -> Object:
        ready = self._phase == "Running" and all(each.is_ready for each in self._main)
        initialized = all(each.exit_code == 0 or (each.sidecar and each.is_ready) for each in self._init)
        status: dict[str, Any] = {
            **old,
            "phase": self._phase,
            "hostIP": self._host_address,
            "hostIPs": [{"ip": self._host_address}],
            "conditions": old.get("conditions") or [],
        }
        if self._start_time:
            status["startTime"] = self._start_time
        if self._phase == "Running":
            status |= {"podIP": self._pod_address, "podIPs": [{"ip": self._pod_address}]}
        if self._reason is not None:
            status["reason"], status["message"] = self._reason
            return status
        done = self._phase == "Succeeded"
        why = "PodCompleted" if done else "ContainersNotReady"
        status["conditions"] = with_conditions(
            status["conditions"],
            {
                "Initialized": (initialized, "PodCompleted" if done else "ContainersNotInitialized"),
                "Ready": (ready, why),
                "ContainersReady": (ready, why),
                "PodScheduled": (True, ""),
            },
        )
        status["containerStatuses"] = [each.status() for each in self._main]
        if self._init:
            status["initContainerStatuses"] = [each.status() for each in self._init]
        return status

    def _release(self) -> None:
        """End every container and give its devices back."""
        code = 137 if self._killed else 0
        for container in (*self._main, *self._init):
            container.stop(code, handles_s=self._services.delays.handles)
        self._services.devices.free(self.uid)

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._services.loop.after(seconds, action)

    def _container(self, spec: Object, *, init: bool) -> Container:
        program: Callable[[], Program] = self._programs.get(command(spec), Workload)
        return Container(spec, self._services, program, init=init, changed=self._container_changed)
