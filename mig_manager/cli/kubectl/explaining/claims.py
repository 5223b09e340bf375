"""GPUs by ResourceClaim: why a claim of the pod has no device yet."""

from __future__ import annotations

from collections.abc import Iterator

from mig_manager.cli.kubectl.explaining.scene import Cause, Claim, Finding, Scene, listed
from mig_manager.cluster.objects import JsonObject


def claim_findings(scene: Scene) -> Iterator[Finding]:
    """Of each claim."""
    namespace = scene.pod["metadata"].get("namespace", "")
    for claim in scene.claims:
        yield from _one(scene, claim, namespace)


def _one(scene: Scene, claim: Claim, namespace: str) -> Iterator[Finding]:
    if claim.name is None:
        if not claim.template_exists:
            text = f"There is no ResourceClaimTemplate {claim.template} in {namespace}, which {claim.entry} names."
            todo = f"kubectl -n {namespace} get resourceclaimtemplates"
            yield Finding(Cause.CLAIM_MISSING, text, todo=todo)
        else:
            text = f"The ResourceClaim for {claim.entry} has not been made from its template yet."
            yield Finding(Cause.CLAIM_MISSING, text)
        return
    if claim.found is None:
        yield Finding(
            Cause.CLAIM_MISSING,
            f"There is no ResourceClaim {claim.name} in {namespace}.",
            todo=f"kubectl -n {namespace} get resourceclaims",
        )
        return
    status = claim.found.get("status") or {}
    if not status.get("allocation"):
        yield from _waiting(scene, claim.name, claim.found)
        return
    holders = [
        str(each.get("name"))
        for each in status.get("reservedFor") or ()
        if each.get("uid") != scene.pod["metadata"].get("uid")
    ]
    if holders:
        yield Finding(
            Cause.CLAIM_ELSEWHERE,
            f"The ResourceClaim {claim.name} is allocated and in use by {listed(holders)}: this pod can only run "
            "where that device is.",
        )


def _waiting(scene: Scene, name: str, claim: JsonObject) -> Iterator[Finding]:
    classes = listed(dict.fromkeys(_classes(claim))) or "no device class"
    if not scene.dra_pools:
        yield Finding(
            Cause.NO_DRIVER,
            f"The ResourceClaim {name} ({classes}) is not allocated, and no node has devices of NVIDIA's DRA driver "
            "(there is no ResourceSlice of gpu.nvidia.com).",
            todo="kubectl get resourceslices",
        )
        return
    pools = listed(f"{node} {count}" for node, count in sorted(scene.dra_pools.items()))
    yield Finding(
        Cause.CLAIM_WAITS,
        f"The ResourceClaim {name} ({classes}) is not allocated: none of the devices that the DRA driver offers "
        f"({pools}) suits it and is free.",
        tuple(sorted(scene.dra_pools)),
        f"kubectl -n {scene.pod['metadata'].get('namespace', '')} describe resourceclaim {name}",
    )


def _classes(claim: JsonObject) -> Iterator[str]:
    requests = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ()
    for each in requests:
        options = [each, each.get("exactly") or {}, *(each.get("firstAvailable") or ())]
        yield from (str(one["deviceClassName"]) for one in options if one.get("deviceClassName"))
