"""One container of a pod on the simulated node, and the program that it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from mig_manager.simulation.delays import Delays
from mig_manager.simulation.loop import Action, Loop, Timer
from mig_manager.simulation.node.claims import ClaimManager
from mig_manager.simulation.node.devices import DeviceManager
from mig_manager.simulation.node.hardware import Hardware, UnknownDeviceError
from mig_manager.simulation.objects import Object, Store
from mig_manager.simulation.podspec import behaviour, is_sidecar
from mig_manager.simulation.recorder import Recorder, timestamp


@dataclass(frozen=True, slots=True)
class NodeServices:
    """What everything that runs on one node shares."""

    name: str
    store: Store
    hardware: Hardware
    loop: Loop
    delays: Delays
    devices: DeviceManager
    claims: ClaimManager
    recorder: Recorder


class Program(Protocol):
    """What a container runs, made anew for every start."""

    def start(self, run: Run) -> None:
        """The container has started. `run` says how it goes on."""
        ...

    def stop(self) -> None:
        """The container has ended, by itself or not."""
        ...


Programs = Mapping[str, Callable[[], Program]]
"""By the first word of a container's `command`. Any other container runs `Workload`."""


class Ends:
    """Ends at once, as `true` and `false` do."""

    def __init__(self, code: int) -> None:
        self._code = code

    def start(self, run: Run) -> None:
        """End."""
        run.exit(self._code)

    def stop(self) -> None:
        """Nothing to put away."""


class Workload:
    """Ready at once; ends after the pod's `run-seconds`, an init container at once, else never."""

    def start(self, run: Run) -> None:
        """Begin."""
        run.ready()
        length = behaviour(run.pod, "run-seconds")
        if run.init:
            run.exit(0)
        elif length is not None:
            run.after(float(length), lambda: run.exit(0))

    def stop(self) -> None:
        """Nothing to put away."""


class Run:
    """One start of a container, as its program sees it."""

    def __init__(self, container: Container, pod: Object, services: NodeServices) -> None:
        self.pod = pod
        self.services = services
        self.name = container.program_name
        self.init = container.init and not container.sidecar
        self.environment: Mapping[str, str] = {
            each["name"]: each.get("value", "") for each in container.spec.get("env") or []
        }
        self.arguments: Sequence[str] = [
            *(container.spec.get("command") or [])[1:],
            *(container.spec.get("args") or []),
        ]
        """What comes after the first word of its command."""
        self._container = container
        self._timers: list[Timer] = []

    def ready(self) -> None:
        """The container passes its readiness probe from now on."""
        self._container.set_ready(self)

    def exit(self, code: int, message: str = "") -> None:
        """The program ends by itself, as soon as the action in hand is through."""
        self.after(0, lambda: self._container.exited(self, code, message))

    def after(self, seconds: float, action: Action) -> None:
        """Run the action later, unless the container has ended by then."""
        self._timers.append(self.services.loop.after(seconds, action))

    def cancel(self) -> None:
        """Run nothing more of what was to come."""
        for timer in self._timers:
            timer.cancel()


class Container:
    """The life of one container: waiting, running, terminated, and round again."""

    def __init__(
        self,
        spec: Object,
        services: NodeServices,
        program: Callable[[], Program],
        *,
        init: bool,
        changed: Callable[[Container], None],
    ) -> None:
        """`changed` is called when the container started, became ready, or ended by itself."""
        self.spec = spec
        self.name: str = spec["name"]
        self.init = init
        self.sidecar = init and is_sidecar(spec)
        self.state: Object = {"waiting": {"reason": "PodInitializing" if not init else "ContainerCreating"}}
        self.last_state: Object = {}
        self.restarts = 0
        self.is_ready = False
        self._services = services
        self._program_type = program
        self._changed = changed
        self._run: Run | None = None
        self._program: Program | None = None
        self._pids: Sequence[int] = ()
        self._failures = 0
        self._timer: Timer | None = None

    @property
    def program_name(self) -> str:
        """What the process is called."""
        return command(self.spec) or self.name

    @property
    def running(self) -> bool:
        """Whether a process of the container lives."""
        return "running" in self.state

    @property
    def fresh(self) -> bool:
        """Whether it was never started."""
        return self._run is None and self._failures == 0 and "waiting" in self.state

    @property
    def exit_code(self) -> int | None:
        """How the container ended for good; None while it runs or will run."""
        terminated = self.state.get("terminated")
        return None if terminated is None else int(terminated["exitCode"])

    def start(self, pod: Object) -> None:
        """Run the container, with its processes on the devices that the pod was given."""
        self._timer = None
        uid = pod["metadata"]["uid"]
        devices = (
            *self._services.devices.devices_of(uid, self.name),
            *self._services.claims.devices_of(uid, self.name),
        )
        try:
            self._pids = self._services.hardware.open(devices, self.program_name, uid)
        except UnknownDeviceError as error:
            self.state = {"waiting": {"reason": "RunContainerError", "message": str(error)}}
            self._services.recorder.record(pod, "Warning", "Failed", f"Error: {error}")
            self._again(pod)
            self._changed(self)
            return
        if self._failures:
            self.restarts += 1
        self.state = {"running": {"startedAt": timestamp()}}
        self._services.recorder.record(pod, "Normal", "Started", f"Started container {self.name}")
        self._run = Run(self, pod, self._services)
        self._program = self._program_type()
        self._program.start(self._run)
        self._changed(self)

    def stop(self, code: int, *, handles_s: float = 0.0) -> None:
        """End the container for good; its handles on GPUs close `handles_s` later."""
        if self._timer is not None:
            self._timer.cancel()
        if self.running:
            self._close(code, "", handles_s)

    def lost(self) -> None:
        """It ran on an earlier boot of the node, and nobody knows how it ended."""
        self.state = {"terminated": {"exitCode": 255, "reason": "Unknown"}}

    def set_ready(self, run: Run) -> None:
        """The program of that run says so."""
        if run is self._run and not self.is_ready:
            self.is_ready = True
            self._changed(self)

    def exited(self, run: Run, code: int, message: str) -> None:
        """The program of that run has ended by itself."""
        if run is not self._run or not self.running:
            return
        self._close(code, message, 0.0)
        policy = "Always" if self.sidecar else run.pod["spec"].get("restartPolicy", "Always")
        for_good = code == 0 and (policy != "Always" or (self.init and not self.sidecar))
        if not for_good and policy != "Never":
            self.last_state = self.state
            wait = self._again(run.pod)
            where = f"container={self.name} pod={run.pod['metadata']['name']}"
            self.state = {
                "waiting": {
                    "reason": "CrashLoopBackOff",
                    "message": f"back-off {wait:g}s restarting failed {where}",
                }
            }
            self._services.recorder.record(
                run.pod, "Warning", "BackOff", f"Back-off restarting failed container {self.name}"
            )
        self._changed(self)

    def status(self) -> Object:
        """The entry in the pod's containerStatuses."""
        image = self.spec.get("image", "")
        return {
            "name": self.name,
            "state": self.state,
            "lastState": self.last_state,
            "ready": self.is_ready if not self.init or self.sidecar else self.exit_code == 0,
            "restartCount": self.restarts,
            "image": image,
            "imageID": image,
            "started": self.running,
        }

    def _again(self, pod: Object) -> float:
        delays = self._services.delays
        wait = float(min(delays.restart * 2**self._failures, delays.restart_most))
        self._failures += 1
        self._timer = self._services.loop.after(wait, lambda: self.start(pod))
        return wait

    def _close(self, code: int, message: str, handles_s: float) -> None:
        self.is_ready = False
        started = self.state["running"]["startedAt"]
        self.state = {
            "terminated": {
                "exitCode": code,
                "reason": "Completed" if code == 0 else "Error",
                **({"message": message} if message else {}),
                "startedAt": started,
                "finishedAt": timestamp(),
            }
        }
        if self._run is not None:
            self._run.cancel()
            self._run = None
        if self._program is not None:
            self._program.stop()
            self._program = None
        pids, self._pids = self._pids, ()
        if handles_s > 0:
            self._services.loop.after(handles_s, lambda: self._services.hardware.close(pids))
        else:
            self._services.hardware.close(pids)


def command(spec: Object) -> str:
    """The first word of what the container runs, without its path; empty where the image decides."""
    words = spec.get("command") or [""]
    return str(words[0]).rpartition("/")[2]
