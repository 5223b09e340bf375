"""Everything that keeps a pod waiting, put together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mig_manager.cli.kubectl.explaining.annotations import annotation_findings
from mig_manager.cli.kubectl.explaining.claims import claim_findings
from mig_manager.cli.kubectl.explaining.obstacles import Obstacle, obstacles
from mig_manager.cli.kubectl.explaining.resources import not_advertised, room, too_few
from mig_manager.cli.kubectl.explaining.scene import Cause, Finding, Place, Scene, counted, listed
from mig_manager.cli.kubectl.explaining.serving import Remedy, gives, remedies
from mig_manager.daemon.status import State


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Why a pod waits, and what would help."""

    verdict: str
    """One sentence."""
    findings: tuple[Finding, ...]
    """What keeps it waiting first."""
    remedies: tuple[Remedy, ...] = ()
    """Layouts that would serve, the cheapest first."""
    unserved: str = ""
    """Why there is none, where one was looked for."""


def diagnose(scene: Scene) -> Diagnosis:
    """Look at everything, and say what is found."""
    settled = _settled(scene)
    if settled is not None:
        return Diagnosis(settled.text, (settled, *annotation_findings(scene)))
    gates = [str(each.get("name")) for each in scene.spec.get("schedulingGates") or ()]
    wants = dict(scene.wants)
    if not wants and not scene.claims:
        return _without_gpu(scene, gates)
    claims = (
        f"{len(scene.claims)} ResourceClaim{'s' if len(scene.claims) > 1 else ''}" if scene.claims else ""
    )
    words = " and ".join(filter(None, (counted(wants), claims)))
    verdict = f"{scene.title} is Pending and wants {words}."
    findings = [*_gated(gates), *claim_findings(scene)]
    helping: tuple[Remedy, ...] = ()
    unserved = ""
    if scene.places is None:
        text = "You may not list Nodes, so that only the scheduler's own words tell what is missing."
        findings.append(Finding(Cause.NODES_UNREADABLE, text, certain=False))
    elif not scene.places:
        text = "There is no Node with GPUs in this cluster: none has the label nvidia.com/gpu.present=true."
        findings.append(Finding(Cause.NO_GPU_NODE, text, certain=False))
    else:
        kept_away = {place.name: obstacles(scene.spec, place) for place in scene.places}
        findings += _by_resource(scene, scene.places, wants, kept_away)
        helping, unserved = _remedies(scene, scene.places, wants, kept_away)
    return Diagnosis(verdict, (*findings, *annotation_findings(scene)), helping, unserved)


def _settled(scene: Scene) -> Finding | None:
    """Where there is nothing to explain: the pod does not wait for a node."""
    phase = scene.status.get("phase") or "Pending"
    node = scene.spec.get("nodeName")
    reason = scene.status.get("reason") or ""
    if "deletionTimestamp" in scene.pod["metadata"]:
        return Finding(Cause.NOT_PENDING, f"{scene.title} is being deleted.")
    if phase == "Failed" and (reason == "UnexpectedAdmissionError" or reason.startswith("OutOf")):
        text = f"{scene.title} was refused by the kubelet of {node} ({reason}): {scene.status.get('message', '')}"
        todo = "delete it and create it anew; it is not tried again by itself"
        return Finding(Cause.NOT_PENDING, text.strip(), todo=todo)
    if phase != "Pending":
        where = f" on {node}" if node else ""
        return Finding(Cause.NOT_PENDING, f"{scene.title} is not Pending: it is {phase}{where}.")
    if node:
        namespace, name = scene.title.split("/")
        return Finding(
            Cause.ASSIGNED,
            f"{scene.title} has its node already, {node}: it does not wait for a GPU, but for its containers to start.",
            (node,),
            f"kubectl -n {namespace} describe pod {name}",
        )
    return None


def _without_gpu(scene: Scene, gates: Sequence[str]) -> Diagnosis:
    text = f"{scene.title} asks for no GPU, neither by a resource nor by a ResourceClaim: it waits for something else."
    finding = Finding(Cause.NO_GPU_WANTED, text)
    return Diagnosis(text, (finding, *_gated(gates), *annotation_findings(scene)))


def _gated(gates: Sequence[str]) -> Iterator[Finding]:
    if gates:
        text = f"The scheduler does not look at it as long as it has the scheduling gates {listed(gates)}."
        yield Finding(Cause.GATED, text)


def _by_resource(
    scene: Scene,
    places: Sequence[Place],
    wants: Mapping[str, int],
    kept_away: Mapping[str, tuple[Obstacle, ...]],
) -> Iterator[Finding]:
    for resource, count in wants.items():
        having = [place for place in places if place.offered.get(resource)]
        if not having:
            yield from not_advertised(resource, places)
            yield from _under_way(places, {resource: count})
            continue
        reachable = [place for place in having if not kept_away[place.name]]
        open_ones = [place for place in places if not kept_away[place.name]]
        if open_ones and not reachable:
            # Others have it, and the pod may not go there: why have those that it may go to not?
            yield from not_advertised(resource, open_ones, of_all=False)
        yield from too_few(resource, count, having, reachable, usage_known=scene.usage_known)
    fitting = [place for place in places if scene.usage_known and _fits(place, wants)]
    offering = [place for place in places if any(place.offered.get(name) for name in wants)]
    yield from _obstacle_findings(fitting or offering or places, kept_away)
    roomy = [place for place in fitting if not kept_away[place.name]]
    if roomy and wants:
        yield room(roomy[0], dict(wants), scene.scheduler)


def _obstacle_findings(
    places: Sequence[Place], kept_away: Mapping[str, tuple[Obstacle, ...]]
) -> Iterator[Finding]:
    """One finding for each thing that stands in the way, with all Nodes that it is true of."""
    nodes: dict[tuple[Cause, str], list[str]] = {}
    hints: dict[tuple[Cause, str], str] = {}
    for place in places:
        for each in kept_away[place.name]:
            nodes.setdefault((each.cause, each.text), []).append(place.name)
            hints.setdefault((each.cause, each.text), each.todo)
    for (cause, text), names in nodes.items():
        yield Finding(cause, f"{listed(names)} {text}.", tuple(names), hints[cause, text])


def _under_way(places: Sequence[Place], wants: Mapping[str, int]) -> Iterator[Finding]:
    """Nodes that are on their way to a layout which has what is missing."""
    for place in places:
        status = place.node.status
        if status is None or status.state not in (State.PENDING, State.REBOOTING):
            continue
        if gives(place.book, status.layout, place, wants):
            yield Finding(
                Cause.IN_A_RUN,
                f"{place.name} is being changed to {status.layout} (phase {status.phase}), which has it.",
                (place.name,),
                f"kubectl mig status {place.name} -w",
                certain=not place.doubts,
            )


def _remedies(
    scene: Scene,
    places: Sequence[Place],
    wants: Mapping[str, int],
    kept_away: Mapping[str, tuple[Obstacle, ...]],
) -> tuple[tuple[Remedy, ...], str]:
    """On Nodes that the pod can go to and that are not being changed; none where it fits as things are.

    With why there is none, where there should be one.
    """
    open_ones = [place for place in places if not kept_away[place.name] and not place.node.in_a_run]
    # Without the users, what a Node offers may be free.
    fits = any(_fits(place, wants) for place in open_ones)
    if fits or not wants:
        return (), ""
    found = remedies(wants, open_ones, usage_known=scene.usage_known)
    return found, "" if found else _unserved(open_ones)


def _unserved(places: Sequence[Place]) -> str:
    if not places:
        return "No layout can help: every node is being changed, or does not take this pod."
    dark = [place.name for place in places if place.inventory is None or not place.strategy]
    if dark:
        return f"Which layout would serve it cannot be told: nothing is known of the GPUs of {listed(dark)}."
    stuck = [place.name for place in places if place.book is None and place.node.takes_no_layout]
    if stuck:
        return f"No layout can be set on {listed(stuck)} now; kubectl mig layouts {stuck[0]} says why."
    return f"No layout that is known for {listed(place.name for place in places)} would serve it."


def _fits(place: Place, wants: Mapping[str, int]) -> bool:
    return all(place.free(resource) >= count for resource, count in wants.items())
