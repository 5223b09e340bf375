"""The words by which people name GPUs and profiles on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mig_manager.cli.errors import InputError
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.findings import clipped, hint
from mig_manager.layouts.profile import MigProfile, ProfileSyntaxError
from mig_manager.layouts.selectors import parse_bus_id, parse_uuid
from mig_manager.layouts.suggest import guess_profile, nearest
from mig_manager.planning.explain import gpu_words
from mig_manager.planning.geometry import GpuGeometry, InstanceProfile
from mig_manager.planning.hand import instance_words
from mig_manager.planning.profiles import in_order, resolve_profile
from mig_manager.planning.state import ComputeInstance, GpuInstance, GpuState, Inventory

_NUMBER = re.compile(r"\d{1,6}", re.ASCII)
_MIG = re.compile(r"mig[ -]", re.IGNORECASE)
"""What nvidia-smi and Kubernetes put before a profile."""


@dataclass(frozen=True, slots=True)
class ProfileWord:
    """A profile as written: by id or by name, and where it shall lie."""

    text: str
    wanted: int | MigProfile
    start: int | None
    """The first slice; None: anywhere."""


def select_gpus(text: str | None, inventory: Inventory) -> tuple[GpuState, ...]:
    """The GPUs that `--gpu` names, by index; all where it is left out.

    Raises:
        InputError: it names one that is not there.
    """
    states = inventory.gpus
    if text is None or text.strip() == "all":
        return states
    chosen: dict[int, GpuState] = {}
    for word in _split(text, "--gpu", "a GPU, such as 0"):
        found = [state for state in states if _names(word, state)]
        if not found:
            raise InputError(f"--gpu {clipped(word)}: there is no such GPU; {_present(word, states)}")
        chosen.update((state.gpu.index, state) for state in found)
    return tuple(chosen[index] for index in sorted(chosen))


def gpus_to_change(text: str | None, inventory: Inventory) -> tuple[GpuState, ...]:
    """The GPUs that a change is for; where there are several, they must be named.

    Raises:
        InputError: it is not clear which GPUs are meant, or one of them has no MIG mode that is on.
    """
    capable = tuple(state for state in inventory.gpus if state.gpu.mig_capable)
    if text is None and len(capable) > 1:
        raise InputError(
            f"--gpu is missing: this machine has {len(capable)} GPUs with MIG; name some, or all"
        )
    every = text is None or text.strip() == "all"
    chosen = capable if every else select_gpus(text, inventory)
    if not chosen:
        raise InputError("this machine has no GPU with MIG")
    for state in chosen:
        _require_mig(state)
    return chosen


def parse_profiles(
    items: Iterable[str], *, example: str = "19, 1g.10gb or 3g.40gb:4"
) -> tuple[ProfileWord, ...]:
    """Profiles as written, `19,1g.10gb,3g.40gb:4`: ids or names, `:` and the first slice where it matters.

    Raises:
        InputError: one is neither.
    """
    words = []
    for item in items:
        for text in _split(item, "profile", f"a profile, such as {example}"):
            name, colon, start = text.partition(":")
            if colon and not _NUMBER.fullmatch(start.strip()):
                raise InputError(
                    f"profile {clipped(text)}: found {clipped(start.strip()) or 'nothing'} after the colon; allowed is "
                    "the number of the first slice"
                )
            words.append(ProfileWord(text, _profile(name.strip(), example), int(start) if colon else None))
    return tuple(words)


def resolve_word(word: ProfileWord, state: GpuState) -> tuple[InstanceProfile, int]:
    """The profile that a word means on a GPU, and the slices of the compute instance in it.

    Raises:
        MigManagerError: UNSUPPORTED_PROFILE; the GPU has no such profile.
    """
    geometry = geometry_of(state)
    if isinstance(word.wanted, MigProfile):
        try:
            return resolve_profile(geometry, word.wanted), word.wanted.compute_slices
        except MigManagerError as error:
            raise MigManagerError(error.reason, f"GPU {state.gpu.index}: {error.message}") from error
    for profile in geometry.profiles:
        if profile.profile_id == word.wanted:
            return profile, profile.name.gpu_slices
    there = ", ".join(f"{profile.profile_id} ({profile.name})" for profile in in_order(geometry.profiles))
    near = nearest(str(word.wanted), (str(profile.profile_id) for profile in geometry.profiles), 1)
    raise MigManagerError(
        Reason.UNSUPPORTED_PROFILE,
        f"{gpu_words(state.gpu)} has no profile with ID {word.wanted}; it has {there}{hint(near)}",
    )


def geometry_of(state: GpuState) -> GpuGeometry:
    """What a GPU offers.

    Raises:
        MigManagerError: UNSUPPORTED_PROFILE; nothing is known of it.
    """
    if state.geometry is None:
        raise MigManagerError(
            Reason.UNSUPPORTED_PROFILE,
            f"{gpu_words(state.gpu)} lists no profiles, and is not in the catalogue",
        )
    return state.geometry


def parse_ids(text: str, option: str) -> tuple[int, ...]:
    """Numbers with commas between them, each once.

    Raises:
        InputError: something else.
    """
    words = _split(text, option, "an ID, such as 3")
    for word in words:
        if not _NUMBER.fullmatch(word):
            raise InputError(
                f"{option} {clipped(word)}: allowed are IDs such as 3, with commas between several"
            )
    return tuple(dict.fromkeys(map(int, words)))


def _split(text: str, what: str, example: str) -> list[str]:
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InputError(f"{what} {clipped(text)!r}: something is missing; allowed is {example}")
    return words


def _profile(text: str, example: str) -> int | MigProfile:
    if _NUMBER.fullmatch(text):
        return int(text)
    name = _MIG.sub("", text, count=1) if _MIG.match(text) else text
    try:
        return MigProfile.parse(name)
    except ProfileSyntaxError:
        guess = guess_profile(name)
        raise InputError(
            f"profile {clipped(text)}: is neither an ID nor a name; allowed is {example}"
            f"{hint([guess] if guess else [])}"
        ) from None


def _names(word: str, state: GpuState) -> bool:
    if _NUMBER.fullmatch(word):
        return int(word) == state.gpu.index
    named = {parse_uuid(word), parse_bus_id(word)} - {None}
    return not named.isdisjoint({parse_uuid(state.gpu.uuid), parse_bus_id(state.gpu.bus_id)})


def _present(word: str, states: Sequence[GpuState]) -> str:
    if not states:
        return "this machine has none"
    indices = [state.gpu.index for state in states]
    if word.upper().startswith("GPU-"):
        near = hint(nearest(word, (state.gpu.uuid for state in states), 1))
        return f"the GPUs are {', '.join(state.gpu.uuid for state in states)}{near}"
    if ":" in word:
        return f"the GPUs are {', '.join(state.gpu.bus_id for state in states)}"
    return f"the GPUs are 0 to {indices[-1]}" if len(indices) > 1 else "the only GPU is 0"


def _require_mig(state: GpuState) -> None:
    here = gpu_words(state.gpu)
    if not state.gpu.mig_capable:
        raise InputError(f"{here} has no MIG")
    if not state.mig_current:
        raise InputError(f"{here}: MIG is off; `mig-manager apply` with a layout turns it on")
    if not state.mig_pending:
        raise InputError(
            f"{here}: MIG will be off after a reset; `mig-manager apply` settles which it shall be"
        )


def find_instance(state: GpuState, instance_id: int) -> GpuInstance:
    """The GPU instance with that ID.

    Raises:
        InputError: there is none.
    """
    for instance in state.instances:
        if instance.id == instance_id:
            return instance
    raise InputError(f"GPU {state.gpu.index} has no GPU instance {instance_id}; {held(state)}")


def find_compute(state: GpuState, instance: GpuInstance, compute_id: int) -> ComputeInstance:
    """The compute instance with that ID in a GPU instance.

    Raises:
        InputError: there is none.
    """
    for compute in instance.compute:
        if compute.id == compute_id:
            return compute
    there = ", ".join(f"{each.id} ({instance.profile.split(each.slices)})" for each in instance.compute)
    raise InputError(
        f"GPU {state.gpu.index}: {instance_words(instance)} has no compute instance {compute_id}; it has "
        f"{there or 'none'}"
    )


def held(state: GpuState) -> str:
    """What a GPU holds, in a message: `it has GPU instance 3 (1g.10gb at 2)`."""
    return f"it has {', '.join(map(instance_words, state.instances)) or 'no instances'}"
