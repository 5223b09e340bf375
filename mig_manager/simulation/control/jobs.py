"""The Job controller, for Jobs of one pod."""

from __future__ import annotations

from mig_manager.simulation.conditions import with_conditions
from mig_manager.simulation.control.owned import owner_uid, pod_from_template, set_status
from mig_manager.simulation.loop import Loop, Wake
from mig_manager.simulation.objects import Change, Object, Store
from mig_manager.simulation.recorder import Recorder, timestamp
from mig_manager.simulation.resources import JOBS, PODS

_ENDS = ("Complete", "Failed")


class Jobs:
    """Makes a pod until one succeeds, or more than `backoffLimit` have failed; without the pauses of the real one."""

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        self._store = store
        self._recorder = Recorder(store, "job-controller")
        self._wake = Wake(loop, self._run, delay=delay)

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if change.resource == JOBS or (change.resource == PODS and owner_uid(change.object) is not None):
            self._wake()

    def _run(self) -> None:
        jobs = self._store.snapshot(JOBS)[0]
        pods = self._store.snapshot(PODS)[0] if jobs else []
        for each in jobs:
            if "deletionTimestamp" not in each["metadata"] and not has_ended(each):
                self._sync(each, [pod for pod in pods if owner_uid(pod) == each["metadata"]["uid"]])

    def _sync(self, job: Object, pods: list[Object]) -> None:
        phases = [pod["status"]["phase"] for pod in pods]
        failed, succeeded = phases.count("Failed"), phases.count("Succeeded")
        old = job.get("status") or {}
        status = {
            "startTime": old.get("startTime") or timestamp(),
            "failed": failed,
            "succeeded": succeeded,
            "active": len(pods) - failed - succeeded,
        }
        if succeeded:
            status["completionTime"] = timestamp()
            status["conditions"] = with_conditions([], {"Complete": (True, "")})
        elif failed > job["spec"].get("backoffLimit", 6):
            status["conditions"] = with_conditions([], {"Failed": (True, "")})
            self._recorder.record(
                job, "Warning", "BackoffLimitExceeded", "Job has reached the specified backoff limit"
            )
        elif not status["active"]:
            self._create(job)
            status["active"] = 1
        set_status(self._store, JOBS, job, status)

    def _create(self, job: Object) -> None:
        meta = job["metadata"]
        labels = {
            "batch.kubernetes.io/job-name": meta["name"],
            "batch.kubernetes.io/controller-uid": meta["uid"],
        }
        pod = pod_from_template(job["spec"]["template"], job, generate_name=f"{meta['name']}-", labels=labels)
        name = self._store.create(PODS, pod)["metadata"]["name"]
        self._recorder.record(job, "Normal", "SuccessfulCreate", f"Created pod: {name}")


def has_ended(job: Object) -> bool:
    """Whether the Job makes no pods any more."""
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(each["type"] in _ENDS and each["status"] == "True" for each in conditions)
