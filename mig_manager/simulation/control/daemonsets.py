"""The DaemonSet controller: one pod on every node that the template selects."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from mig_manager.simulation.control.owned import owner_uid, pod_from_template, set_status, template_hash
from mig_manager.simulation.loop import Loop, Wake
from mig_manager.simulation.objects import Change, Object, Store
from mig_manager.simulation.podspec import fits_node, is_ready, untolerated
from mig_manager.simulation.recorder import Recorder
from mig_manager.simulation.resources import DAEMON_SETS, NODES, PODS

_FAILED_POD_WAIT_S = 1.0
_TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    ("node.kubernetes.io/unschedulable", "NoSchedule"),
)


class DaemonSets:
    """Follows labels and taints of nodes: a pod goes when its node no longer matches, and comes back later.

    A pod that is still ending keeps its successor from being made, as in the real controller.
    """

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        self._store = store
        self._loop = loop
        self._recorder = Recorder(store, "daemonset-controller")
        self._wake = Wake(loop, self._run, delay=delay)
        self._failed: set[str] = set()
        self._revisions: dict[tuple[str, int | None], str] = {}
        """By uid and generation."""

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if change.resource in (DAEMON_SETS, NODES) or (
            change.resource == PODS and owner_uid(change.object) is not None
        ):
            self._wake()

    def _run(self) -> None:
        nodes, _ = self._store.snapshot(NODES)
        pods, _ = self._store.snapshot(PODS)
        for each in self._store.snapshot(DAEMON_SETS)[0]:
            if "deletionTimestamp" not in each["metadata"]:
                self._sync(each, nodes, [pod for pod in pods if owner_uid(pod) == each["metadata"]["uid"]])

    def _sync(self, daemon_set: Object, nodes: Sequence[Object], pods: list[Object]) -> None:
        by_node: dict[str, list[Object]] = defaultdict(list)
        for pod in pods:
            by_node[_node_of(pod)].append(pod)
        revision = self._revision_of(daemon_set)
        wanted = ready = updated = misplaced = current = 0
        for node in nodes:
            held = by_node.pop(node["metadata"]["name"], [])
            template = self._pod(daemon_set, node["metadata"]["name"], revision)
            taints = list(untolerated(template, node["spec"].get("taints") or []))
            fits = fits_node(template, node)
            if fits and not taints:
                wanted += 1
                current += bool(held)
                ready += any(is_ready(pod) for pod in held)
                updated += any(_revision(pod) == revision for pod in held)
                if not held:
                    self._create(daemon_set, template)
                self._replace(daemon_set, held, revision)
            elif not fits or any(taint["effect"] == "NoExecute" for taint in taints):
                misplaced += bool(held)
                for pod in held:
                    self._delete(daemon_set, pod)
        for held in by_node.values():
            for pod in held:
                self._delete(daemon_set, pod)

        status = {
            "observedGeneration": daemon_set["metadata"].get("generation", 1),
            "desiredNumberScheduled": wanted,
            "currentNumberScheduled": current,
            "numberMisscheduled": misplaced,
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": wanted - ready,
            "updatedNumberScheduled": updated,
        }
        set_status(self._store, DAEMON_SETS, daemon_set, status)

    def _revision_of(self, daemon_set: Object) -> str:
        key = daemon_set["metadata"]["uid"], daemon_set["metadata"].get("generation")
        if key not in self._revisions:
            self._revisions[key] = template_hash(daemon_set["spec"]["template"])
        return self._revisions[key]

    def _replace(self, daemon_set: Object, pods: list[Object], revision: str) -> None:
        """Delete what failed, after a wait, and what an older template made, at once."""
        rolling = daemon_set["spec"].get("updateStrategy", {}).get("type", "RollingUpdate") == "RollingUpdate"
        for pod in pods:
            uid = pod["metadata"]["uid"]
            if pod.get("status", {}).get("phase") == "Failed":
                if uid not in self._failed:
                    self._failed.add(uid)
                    self._loop.after(_FAILED_POD_WAIT_S, lambda pod=pod: self._delete(daemon_set, pod))  # type: ignore[misc]
            elif rolling and _revision(pod) != revision:
                self._delete(daemon_set, pod)

    def _pod(self, daemon_set: Object, node: str, revision: str) -> Object:
        pod = pod_from_template(
            daemon_set["spec"]["template"],
            daemon_set,
            generate_name=f"{daemon_set['metadata']['name']}-",
            labels={"controller-revision-hash": revision},
        )
        here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
        affinity = dict(pod["spec"].get("affinity") or {})
        node_affinity = dict(affinity.get("nodeAffinity") or {})
        required = node_affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
        terms = [{**term, **here} for term in required.get("nodeSelectorTerms") or []] or [here]
        node_affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
        affinity["nodeAffinity"] = node_affinity
        tolerations = [
            *(pod["spec"].get("tolerations") or []),
            *({"key": key, "operator": "Exists", "effect": effect} for key, effect in _TOLERATED),
        ]
        pod["spec"] = {**pod["spec"], "affinity": affinity, "tolerations": tolerations}
        return pod

    def _create(self, daemon_set: Object, pod: Object) -> None:
        name = self._store.create(PODS, pod)["metadata"]["name"]
        self._recorder.record(daemon_set, "Normal", "SuccessfulCreate", f"Created pod: {name}")

    def _delete(self, daemon_set: Object, pod: Object) -> None:
        meta = pod["metadata"]
        self._failed.discard(meta["uid"])
        now = self._store.get(PODS, meta["namespace"], meta["name"])
        if now is None or now["metadata"]["uid"] != meta["uid"] or "deletionTimestamp" in now["metadata"]:
            return
        self._store.delete(PODS, meta["namespace"], meta["name"])
        self._recorder.record(daemon_set, "Normal", "SuccessfulDelete", f"Deleted pod: {meta['name']}")


def _node_of(pod: Object) -> str:
    """The node that the pod runs on or was made for."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    affinity = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _revision(pod: Object) -> str | None:
    revision = (pod["metadata"].get("labels") or {}).get("controller-revision-hash")
    return None if revision is None else str(revision)
