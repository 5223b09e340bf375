"""ResourceClaims: made from templates, given devices when their pod gets a node, and taken back at its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from mig_manager.simulation.loop import Loop, Wake
from mig_manager.simulation.objects import Change, Object, Store
from mig_manager.simulation.podspec import claim_names, is_finished
from mig_manager.simulation.resources import (
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
)

TYPES = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
"""By NVIDIA's device classes: the `type` of the devices that they select."""


class ResourceClaims:
    """The controller: claims from templates, and reservations of pods that are gone or have ended."""

    def __init__(self, store: Store, loop: Loop, *, delay: float) -> None:
        self._store = store
        self._wake = Wake(loop, self._run, delay=delay)

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the loop."""
        if change.resource in (PODS, RESOURCE_CLAIMS, RESOURCE_CLAIM_TEMPLATES):
            self._wake()

    def _run(self) -> None:
        pods = self._store.snapshot(PODS)[0]
        for pod in pods:
            if not is_finished(pod) and "deletionTimestamp" not in pod["metadata"]:
                self._make(pod)
        active = {pod["metadata"]["uid"] for pod in pods if not is_finished(pod)}
        for claim in self._store.snapshot(RESOURCE_CLAIMS)[0]:
            reserved = (claim.get("status") or {}).get("reservedFor") or []
            if any(each["uid"] not in active for each in reserved):
                self._release(claim, active)

    def _make(self, pod: Object) -> None:
        meta = pod["metadata"]
        known = claim_names(pod)
        for entry in pod["spec"].get("resourceClaims") or []:
            template = entry.get("resourceClaimTemplateName")
            if template is None or entry["name"] in known:
                continue
            found = self._store.get(RESOURCE_CLAIM_TEMPLATES, meta["namespace"], template)
            if found is None:
                continue
            owner = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
            claim = self._store.create(
                RESOURCE_CLAIMS,
                {
                    "metadata": {
                        "generateName": f"{meta['name']}-{entry['name']}-",
                        "namespace": meta["namespace"],
                        "ownerReferences": [{**owner, "controller": True}],
                    },
                    "spec": found["spec"]["spec"],
                },
            )
            made = {"name": entry["name"], "resourceClaimName": claim["metadata"]["name"]}

            def note(now: Object, made: Object = made) -> Object:
                now.setdefault("status", {}).setdefault("resourceClaimStatuses", []).append(made)
                return now

            self._store.update(PODS, meta["namespace"], meta["name"], note)

    def _release(self, claim: Object, active: set[str]) -> None:
        def change(now: Object) -> Object:
            status = now["status"]
            status["reservedFor"] = [each for each in status["reservedFor"] if each["uid"] in active]
            return now if status["reservedFor"] else {**now, "status": {}}

        meta = claim["metadata"]
        self._store.update(RESOURCE_CLAIMS, meta["namespace"], meta["name"], change)


def allocate(store: Store, pod: Object, node: str) -> str | None:
    """Give the pod's claims devices of the node, all or none. What the scheduler says if it cannot."""
    namespace = pod["metadata"]["namespace"]
    names = claim_names(pod)
    if len(names) < len(pod["spec"].get("resourceClaims") or []):
        return "waiting for resource claim to be created"
    claims = [store.get(RESOURCE_CLAIMS, namespace, name) for name in names.values()]
    taken = {
        (result["pool"], result["device"])
        for claim in store.snapshot(RESOURCE_CLAIMS)[0]
        for result in _results(claim)
    }
    chosen: list[tuple[Object, list[Object]]] = []
    for claim in claims:
        if claim is None:
            return "resourceclaim not found"
        results = list(_results(claim)) or _choose(store, claim, node, taken)
        if results is None:
            return "cannot allocate all claims"
        taken.update((result["pool"], result["device"]) for result in results)
        chosen.append((claim, results))
    for claim, results in chosen:
        store.update(RESOURCE_CLAIMS, namespace, claim["metadata"]["name"], _allocated(pod, results))
    return None


def _allocated(pod: Object, results: list[Object]) -> Callable[[Object], Object]:
    meta = pod["metadata"]
    user = {"resource": "pods", "name": meta["name"], "uid": meta["uid"]}

    def change(now: Object) -> Object:
        reserved = (now.get("status") or {}).get("reservedFor") or []
        now["status"] = {
            "allocation": {"devices": {"results": results}},
            "reservedFor": [*(each for each in reserved if each["uid"] != meta["uid"]), user],
        }
        return now

    return change


def _results(claim: Object) -> Iterable[Object]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return (allocation.get("devices") or {}).get("results") or []


def _choose(store: Store, claim: Object, node: str, taken: set[tuple[str, str]]) -> list[Object] | None:
    """A free device for each request; None where there is none."""
    results: list[Object] = []
    for request in claim["spec"]["devices"]["requests"]:
        kind = TYPES.get(request["exactly"]["deviceClassName"])
        for found in store.snapshot(RESOURCE_SLICES)[0]:
            spec = found["spec"]
            pool = spec["pool"]["name"]
            free = [
                device["name"]
                for device in spec["devices"]
                if spec.get("nodeName") == node
                and device["attributes"]["type"]["string"] == kind
                and (pool, device["name"]) not in taken
            ]
            if free:
                taken.add((pool, free[0]))
                results.append(
                    {
                        "request": request["name"],
                        "driver": spec["driver"],
                        "pool": pool,
                        "device": free[0],
                    }
                )
                break
        else:
            return None
    return results
