"""Labels and annotations on pods that look as if they chose a MIG layout, and do not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mig_manager.cli.kubectl.explaining.scene import Cause, Finding, Scene
from mig_manager.daemon.advertised import resource_name
from mig_manager.daemon.status import CONFIG_LABEL
from mig_manager.layouts.findings import clipped, hint
from mig_manager.layouts.profile import MigProfile, ProfileSyntaxError
from mig_manager.layouts.suggest import guess_profile, nearest

_KEYS = ("nvidia.com/mig-config", CONFIG_LABEL)


def annotation_findings(scene: Scene) -> Iterator[Finding]:
    """What stands on the pod and is read by nobody."""
    meta = scene.pod["metadata"]
    for kind in ("annotation", "label"):
        values: Mapping[str, str] = meta.get(f"{kind}s") or {}
        for key in _KEYS:
            if key in values:
                yield _ignored(scene, kind, key, values[key])


def _ignored(scene: Scene, kind: str, key: str, value: str) -> Finding:
    text = f"The {kind} {key}={clipped(value)} on the pod does nothing: a layout is chosen by the label "
    text += f"{CONFIG_LABEL} of a Node, and a pod asks for devices in its resources."
    names = list(dict.fromkeys(name for place in scene.places or () for name in place.node.layouts))
    profile = _profile(value)
    if value in names:
        nodes = tuple(place.name for place in scene.places or () if value in place.node.layouts)
        todo = f"kubectl label node {nodes[0]} {CONFIG_LABEL}={value} --overwrite"
        return Finding(Cause.IGNORED_ANNOTATION, f"{text} There is a layout of that name.", nodes, todo)
    if profile is not None:
        wanted = resource_name(profile)
        meant = "" if str(profile) == value else f", which is probably meant as {profile}"
        return Finding(
            Cause.IGNORED_ANNOTATION,
            f"{text} {clipped(value)} is a profile, not a layout{meant}.",
            todo="" if wanted in scene.wants else f"ask for {wanted}: 1 in the limits of a container",
        )
    near = nearest(value, names)
    return Finding(Cause.IGNORED_ANNOTATION, f"{text} No node lists a layout of that name{hint(near) or '.'}")


def _profile(value: str) -> MigProfile | None:
    for text in (value, value.replace("gb.", "gb+"), guess_profile(value)):
        if text and not value.startswith("all-"):
            try:
                return MigProfile.parse(text)
            except ProfileSyntaxError:
                continue
    return None
