"""A resource name against what the Nodes advertise: why none has it, or has none left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mig_manager.cli.kubectl.explaining.scene import Cause, Finding, Place, counted, listed, users_in_words
from mig_manager.cluster.resources import GPU_RESOURCE, MIG_PREFIX, SHARED
from mig_manager.daemon.advertised import profile_of, resource_name
from mig_manager.daemon.status import STRATEGY_LABEL
from mig_manager.errors import MigManagerError
from mig_manager.layouts.profile import MigProfile
from mig_manager.layouts.suggest import guess_profile, nearest
from mig_manager.planning.profiles import resolve_profile


def not_advertised(resource: str, places: Sequence[Place], *, of_all: bool = True) -> Iterator[Finding]:
    """Why none of these Nodes advertises a resource, and what they advertise instead.

    `of_all`: they are all that there are, not only those that the pod can go to.
    """
    others = sorted({name for place in places for name in place.offered})
    who = "No node" if of_all else f"No node that the pod can go to ({listed(p.name for p in places)})"
    text = f"{who} advertises {resource} now"
    yield Finding(Cause.NOT_ADVERTISED, f"{text}; they advertise {listed(others)}." if others else f"{text}.")
    alone = resource.removesuffix(SHARED)
    twin = resource + SHARED if alone == resource else alone
    if twin in others:
        renamed = "shares these devices and renames them"
        plain = f"does not share these devices, and only shared ones are called {SHARED}"
        why = f"The device plugin {renamed if alone == resource else plain}"
        yield _instead(Cause.SHARED_NAME, twin, places, why)
        return
    profile = profile_of(resource)
    if profile is not None:
        yield from _by_profile(resource, profile, places, others)
    elif resource.startswith(MIG_PREFIX):
        guess = guess_profile(resource)
        near = nearest(resource, others, 1)
        meant = near[0] if near else guess and MIG_PREFIX + guess.replace("+", ".")
        hint = f"ask for {meant} instead, if that is what is meant" if meant else ""
        yield Finding(Cause.NO_PROFILE, f"{resource} names no MIG profile.", todo=hint)
    elif resource == GPU_RESOURCE:
        yield from _no_whole_gpu(places)


def _by_profile(
    resource: str, profile: MigProfile, places: Sequence[Place], others: Sequence[str]
) -> Iterator[Finding]:
    for place in places:
        yield from _strategy(place, profile)
    alike = {name: other for name in others if (other := profile_of(name)) is not None}
    same_size = [name for name, other in alike.items() if _size(other) == _size(profile)]
    same_slices = [name for name, other in alike.items() if other.gpu_slices == profile.gpu_slices]
    if same_size:
        yield _instead(
            Cause.OTHER_VARIANT,
            same_size[0],
            places,
            f"{alike[same_size[0]]} and {profile} are of one size, but two resources",
        )
    elif same_slices:
        yield _instead(
            Cause.OTHER_MEMORY,
            nearest(resource, same_slices, 1)[0] if nearest(resource, same_slices, 1) else same_slices[0],
            places,
            "The same slices with another memory size",
        )
    yield from _unsupported(resource, profile, places)


def _size(profile: MigProfile) -> tuple[int, int, int]:
    return profile.gpu_slices, profile.compute_slices, profile.memory_gb


def _instead(cause: Cause, name: str, places: Sequence[Place], why: str) -> Finding:
    having = [place for place in places if place.offered.get(name)]
    free = sum(max(place.free(name), 0) for place in having)
    where = listed(place.name for place in having)
    return Finding(
        cause,
        f"{why}: {where} advertise{'s' if len(having) == 1 else ''} {name} ({free} free).",
        nodes=tuple(place.name for place in having),
        todo=f"ask for {name} in the pod's resources, if it serves as well",
    )


def _unsupported(resource: str, profile: MigProfile, places: Sequence[Place]) -> Iterator[Finding]:
    """Where no GPU of any Node has the profile at all."""
    reasons: dict[str, list[str]] = {}
    for place in places:
        for state in place.inventory.gpus if place.inventory is not None else ():
            if state.geometry is None:
                continue
            try:
                found = resolve_profile(state.geometry, profile)
            except MigManagerError as error:
                reasons.setdefault(error.message, []).append(place.name)
                continue
            real = found.name.split(profile.compute_slices)
            if real != profile:
                yield Finding(
                    Cause.OTHER_MEMORY,
                    f"The GPUs of {place.name} call this profile {real}.",
                    (place.name,),
                    f"ask for {resource_name(real)} instead of {resource}",
                )
            return
    for message, names in reasons.items():
        nodes = tuple(dict.fromkeys(names))
        yield Finding(Cause.UNSUPPORTED, f"No layout makes it on {listed(nodes)}: {message}", nodes)


def _strategy(place: Place, profile: MigProfile) -> Iterator[Finding]:
    """Where the device plugin does not call devices by their profile."""
    if place.strategy not in ("single", "none") or place.inventory is None:
        return
    instances = [one for state in place.inventory.gpus for one in state.instances]
    held = sum(one.profile.split(device.slices) == profile for one in instances for device in one.compute)
    there = f"it holds {held} x {profile}, but" if held else "there"
    plugin = f"The device plugin of {place.name} has the MIG strategy {place.strategy!r}: {there}"
    labels = place.node.node.meta.labels
    product = labels.get(f"{GPU_RESOURCE}.product", "")
    mixed = "set the device plugin's MIG strategy to 'mixed' to have resources by profile"
    if place.strategy == "single":
        todo = f"ask for {GPU_RESOURCE}, with the nodeSelector {GPU_RESOURCE}.product: {product}"
        yield Finding(
            Cause.STRATEGY,
            f"{plugin} every MIG device is advertised as {GPU_RESOURCE}, and the profile stands in the label "
            f"{GPU_RESOURCE}.product{f' ({product})' if product else ''}.",
            (place.name,),
            todo if held and product else mixed,
        )
    else:
        told = STRATEGY_LABEL in labels or bool(product)
        yield Finding(
            Cause.STRATEGY, f"{plugin} only whole GPUs are advertised.", (place.name,), mixed, certain=told
        )


def _no_whole_gpu(places: Sequence[Place]) -> Iterator[Finding]:
    """Every GPU is cut, and the strategy gives MIG devices names of their own."""
    cut = [place for place in places if any(name.startswith(MIG_PREFIX) for name in place.offered)]
    if cut:
        names = sorted({name for place in cut for name in place.offered})
        yield Finding(
            Cause.NOT_ADVERTISED,
            f"No whole GPU is left on {listed(place.name for place in cut)}: they are cut into MIG devices.",
            tuple(place.name for place in cut),
            f"ask for {' or '.join(names)} instead, if a part of a GPU is enough",
        )


def too_few(
    resource: str, count: int, having: Sequence[Place], reachable: Sequence[Place], *, usage_known: bool
) -> Iterator[Finding]:
    """Why Nodes that advertise a resource do not give away so many devices.

    `having` are those that advertise it, `reachable` those of them that nothing else keeps the pod from.
    """
    largest = max(place.offered[resource] for place in having)
    if largest < count:
        yield Finding(
            Cause.MORE_THAN_A_NODE,
            f"The pod wants {count} {resource} at once, and no node has more than {largest}.",
            tuple(place.name for place in having),
        )
        return
    full = [place for place in reachable if place.free(resource) < count]
    if not usage_known:
        names = tuple(place.name for place in having)
        yield Finding(
            Cause.IN_USE,
            f"{listed(names)} advertise{'s' if len(names) == 1 else ''} {resource}; how many are in use cannot be "
            "told, since you may not list pods of all namespaces.",
            names,
            certain=False,
        )
        return
    for place in full:
        users = users_in_words(place.users(resource))
        used, offered = place.used(resource), place.offered[resource]
        yield Finding(
            Cause.IN_USE,
            f"{place.name} advertises {offered} {resource}, {_in_use(used, offered)}{f': {users}' if users else ''}.",
            (place.name,),
        )


def _in_use(used: int, offered: int) -> str:
    if used >= offered:
        return "and all are in use" if offered > 1 else "and it is in use"
    return f"of which {used} {'is' if used == 1 else 'are'} in use"


def room(place: Place, wants: dict[str, int], scheduler: str) -> Finding:
    """A Node that has what the pod wants and that nothing seen here keeps it from."""
    said = (
        " What the scheduler says (above) is about something else then, such as CPU or memory."
        if scheduler
        else ""
    )
    return Finding(
        Cause.ROOM,
        f"{place.name} has room for {counted(wants)}, and no selector or taint in the way.{said}",
        (place.name,),
        certain=False,
    )
