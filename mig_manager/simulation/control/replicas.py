"""The Deployment and ReplicaSet controllers: so many pods of a template, whatever happens to them."""

from __future__ import annotations

from mig_manager.simulation.conditions import with_conditions
from mig_manager.simulation.control.owned import (
    owner_reference,
    owner_uid,
    pod_from_template,
    set_status,
    template_hash,
)
from mig_manager.simulation.loop import Loop, Wake
from mig_manager.simulation.objects import Change, Object, Store
from mig_manager.simulation.podspec import is_finished, is_ready
from mig_manager.simulation.recorder import Recorder
from mig_manager.simulation.resources import DEPLOYMENTS, PODS, REPLICA_SETS


class Deployments:
    """One ReplicaSet for each template; the newest has all replicas, the others none."""

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        self._store = store
        self._recorder = Recorder(store, "deployment-controller")
        self._wake = Wake(loop, self._run, delay=delay)

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if change.resource in (DEPLOYMENTS, REPLICA_SETS):
            self._wake()

    def _run(self) -> None:
        sets, _ = self._store.snapshot(REPLICA_SETS)
        for each in self._store.snapshot(DEPLOYMENTS)[0]:
            if "deletionTimestamp" not in each["metadata"]:
                self._sync(each, [one for one in sets if owner_uid(one) == each["metadata"]["uid"]])

    def _sync(self, deployment: Object, sets: list[Object]) -> None:
        meta, spec = deployment["metadata"], deployment["spec"]
        revision = template_hash(spec["template"])
        name = f"{meta['name']}-{revision}"
        replicas = int(spec.get("replicas", 1))
        for each in sets:
            self._scale(deployment, each, replicas if each["metadata"]["name"] == name else 0)
        if not any(each["metadata"]["name"] == name for each in sets):
            self._create(deployment, name, revision, replicas, len(sets) + 1)
        newest = [each.get("status") or {} for each in sets if each["metadata"]["name"] == name]
        ready = sum(int((each.get("status") or {}).get("readyReplicas", 0)) for each in sets)

        conditions = (deployment.get("status") or {}).get("conditions") or []
        available = {"Available": (ready >= replicas, "MinimumReplicasUnavailable")}
        status = {
            "observedGeneration": meta.get("generation", 1),
            "replicas": sum(int((each.get("status") or {}).get("replicas", 0)) for each in sets),
            "updatedReplicas": sum(int(each.get("replicas", 0)) for each in newest),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(replicas - ready, 0),
            "conditions": with_conditions(conditions, available),
        }
        set_status(self._store, DEPLOYMENTS, deployment, status)

    def _scale(self, deployment: Object, replica_set: Object, replicas: int) -> None:
        if replica_set["spec"].get("replicas", 1) == replicas:
            return

        def change(now: Object) -> Object:
            now["spec"]["replicas"] = replicas
            return now

        meta = replica_set["metadata"]
        self._store.update(REPLICA_SETS, meta["namespace"], meta["name"], change)
        message = f"Scaled replica set {meta['name']} to {replicas}"
        self._recorder.record(deployment, "Normal", "ScalingReplicaSet", message)

    def _create(self, deployment: Object, name: str, revision: str, replicas: int, number: int) -> None:
        spec, meta = deployment["spec"], deployment["metadata"]
        hashed = {"pod-template-hash": revision}
        template = spec["template"]
        labels = {**(template.get("metadata", {}).get("labels") or {}), **hashed}
        selector = spec["selector"]
        self._store.create(
            REPLICA_SETS,
            {
                "metadata": {
                    "name": name,
                    "namespace": meta["namespace"],
                    "labels": labels,
                    "annotations": {
                        "deployment.kubernetes.io/desired-replicas": str(replicas),
                        "deployment.kubernetes.io/revision": str(number),
                    },
                    "ownerReferences": [owner_reference(deployment)],
                },
                "spec": {
                    "replicas": replicas,
                    "selector": {
                        **selector,
                        "matchLabels": {**(selector.get("matchLabels") or {}), **hashed},
                    },
                    "template": {
                        **template,
                        "metadata": {**(template.get("metadata") or {}), "labels": labels},
                    },
                },
            },
        )
        message = f"Scaled up replica set {name} from 0 to {replicas}"
        self._recorder.record(deployment, "Normal", "ScalingReplicaSet", message)


class ReplicaSets:
    """Makes a new pod as soon as one begins to end; pods that failed stay behind and do not count."""

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        self._store = store
        self._recorder = Recorder(store, "replicaset-controller")
        self._wake = Wake(loop, self._run, delay=delay)

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if change.resource == REPLICA_SETS or (
            change.resource == PODS and owner_uid(change.object) is not None
        ):
            self._wake()

    def _run(self) -> None:
        pods, _ = self._store.snapshot(PODS)
        for each in self._store.snapshot(REPLICA_SETS)[0]:
            if "deletionTimestamp" not in each["metadata"]:
                own = [pod for pod in pods if owner_uid(pod) == each["metadata"]["uid"]]
                self._sync(each, [pod for pod in own if _counts(pod)])

    def _sync(self, replica_set: Object, pods: list[Object]) -> None:
        meta, spec = replica_set["metadata"], replica_set["spec"]
        wanted = int(spec.get("replicas", 1))
        for _ in range(wanted - len(pods)):
            pod = pod_from_template(
                spec["template"], replica_set, generate_name=f"{meta['name']}-", labels={}
            )
            name = self._store.create(PODS, pod)["metadata"]["name"]
            self._recorder.record(replica_set, "Normal", "SuccessfulCreate", f"Created pod: {name}")
        surplus = sorted(pods, key=_worth)[: max(len(pods) - wanted, 0)]
        for pod in surplus:
            self._store.delete(PODS, meta["namespace"], pod["metadata"]["name"])
            message = f"Deleted pod: {pod['metadata']['name']}"
            self._recorder.record(replica_set, "Normal", "SuccessfulDelete", message)

        ready = sum(is_ready(pod) for pod in pods)
        status = {
            "observedGeneration": meta.get("generation", 1),
            "replicas": len(pods),
            "fullyLabeledReplicas": len(pods),
            "readyReplicas": ready,
            "availableReplicas": ready,
        }
        set_status(self._store, REPLICA_SETS, replica_set, status)


def _counts(pod: Object) -> bool:
    return "deletionTimestamp" not in pod["metadata"] and not is_finished(pod)


def _worth(pod: Object) -> tuple[bool, bool]:
    """What is worth least goes first: without a node, then not ready."""
    return bool(pod["spec"].get("nodeName")), is_ready(pod)
