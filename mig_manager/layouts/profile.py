"""The name of a MIG device, as users write it and as NVIDIA's tools print it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering

_NAME = re.compile(r"(?:(?P<c>[1-9]\d*)c\.)?(?P<g>[1-9]\d*)g\.(?P<gb>0|[1-9]\d*)gb(?P<tail>(?:[+-].*)?)")
_ATTRIBUTE = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:\.[A-Za-z0-9]+)*")


class ProfileSyntaxError(ValueError):
    """The text is not a profile name. `str(error)` says what is wrong with it."""


@total_ordering
@dataclass(frozen=True, slots=True)
class MigProfile:
    """A MIG device type: `1g.10gb`, `1c.3g.20gb`, `1g.10gb+me`, `1g.24gb+me.all`, `1g.24gb-me`.

    `compute_slices` equals `gpu_slices` where one compute instance fills the GPU instance; the name then
    leaves the `c` part out. Attributes are compared as sets. Larger profiles sort first, in the order in
    which NVIDIA's tools create them: GPU slices, then compute slices, then memory.

    Source: MIG User Guide, "Device Names".
    """

    compute_slices: int
    gpu_slices: int
    memory_gb: int
    """0 on GPUs without memory of their own, such as Thor."""
    attributes: frozenset[str] = frozenset()
    """Media extensions added, without the sign: `me`, `gfx`, `me.all`."""
    removed: frozenset[str] = frozenset()
    """Extensions taken away, without the sign: `me` in `1g.24gb-me`."""

    @classmethod
    def parse(cls, text: str) -> MigProfile:
        """Read a profile name.

        Raises:
            ProfileSyntaxError: the text is not a name of that form.
        """
        match = _NAME.fullmatch(text)
        if match is None:
            raise ProfileSyntaxError(
                f"{text!r} is not a profile name such as 1g.10gb, 1c.3g.20gb, 1g.10gb+me"
            )
        gpu_slices = int(match["g"])
        compute_slices = int(match["c"]) if match["c"] else gpu_slices
        if compute_slices > gpu_slices:
            raise ProfileSyntaxError(
                f"{text!r} asks for {compute_slices} compute slices of a GPU instance that has {gpu_slices}"
            )
        tail = match["tail"]
        names = _attributes(text, tail[1:]) if tail else frozenset()
        return cls(
            compute_slices=compute_slices,
            gpu_slices=gpu_slices,
            memory_gb=int(match["gb"]),
            attributes=names if tail.startswith("+") else frozenset(),
            removed=names if tail.startswith("-") else frozenset(),
        )

    @property
    def gpu_instance(self) -> MigProfile:
        """The profile of the GPU instance that holds such a device: `3g.20gb` for `1c.3g.20gb`."""
        if self.whole:
            return self
        return MigProfile(self.gpu_slices, self.gpu_slices, self.memory_gb, self.attributes, self.removed)

    @property
    def whole(self) -> bool:
        """Whether one compute instance fills the GPU instance."""
        return self.compute_slices == self.gpu_slices

    @property
    def suffix(self) -> str:
        """The attributes as written: ``, `+me`, `+me.all`, `-me`."""
        if self.attributes:
            return "+" + ",".join(sorted(self.attributes))
        return "-" + ",".join(sorted(self.removed)) if self.removed else ""

    def split(self, compute_slices: int) -> MigProfile:
        """The device that a compute instance of that many slices makes in this GPU instance."""
        return MigProfile(compute_slices, self.gpu_slices, self.memory_gb, self.attributes, self.removed)

    def __str__(self) -> str:
        prefix = "" if self.whole else f"{self.compute_slices}c."
        return f"{prefix}{self.gpu_slices}g.{self.memory_gb}gb{self.suffix}"

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, MigProfile):
            return NotImplemented
        return self._order() < other._order()

    def _order(self) -> tuple[int, int, int, str]:
        return (-self.gpu_slices, -self.compute_slices, -self.memory_gb, self.suffix)


def _attributes(text: str, tail: str) -> frozenset[str]:
    names = tail.split(",")
    for name in names:
        if not _ATTRIBUTE.fullmatch(name):
            raise ProfileSyntaxError(f"{text!r} has the attribute {name!r}; known: me, gfx, me.all")
    if len(set(names)) != len(names):
        raise ProfileSyntaxError(f"{text!r} names an attribute twice")
    return frozenset(names)


def dotted_profile(name: str) -> MigProfile | None:
    """The profile that a layout or resource name speaks of, where a dot stands for `+`: `1g.10gb.me` for `1g.10gb+me`.

    None for any other name.
    """
    head, mark, attributes = name.partition("gb.")
    try:
        return MigProfile.parse(f"{head}gb+{attributes}" if mark else name)
    except ProfileSyntaxError:
        return None
