"""What the Node's label asks for, held against the layout files and the GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mig_manager.daemon.books import BookSource, find_layout
from mig_manager.errors import MigManagerError
from mig_manager.layouts.book import LayoutBook, content_hash, resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.layouts.layout import GpuIdentity, NodeTarget
from mig_manager.planning.hardware import generator_input
from mig_manager.planning.state import Inventory


@dataclass(frozen=True, slots=True)
class Wish:
    """A layout name, and what it means on this node. Two wishes are equal when they mean the same."""

    layout: str
    hash: str | None
    """Hash of the target; None where there is none."""
    problem: str | None
    """Why there is no target, in words."""
    target: NodeTarget | None = field(default=None, compare=False)
    error: MigManagerError | None = field(default=None, compare=False)

    def must(self) -> NodeTarget:
        """The target. Raises the MigManagerError that stands in its way."""
        if self.target is None:
            assert self.error is not None
            raise self.error
        return self.target


class Wishes:
    """Turns label values into wishes. Knows the GPUs as the last run read them."""

    def __init__(self, user: BookSource, default: BookSource | None = None) -> None:
        self._user = user
        self._default = default
        self._gpus: tuple[GpuIdentity, ...] | None = None
        self._generated: LayoutBook | None = None

    @property
    def know_hardware(self) -> bool:
        """Whether the GPUs have been read at least once; before that no wish has a meaning."""
        return self._gpus is not None

    def learn(self, inventory: Inventory) -> None:
        """Take note of the GPUs of this node."""
        gpus = tuple(state.gpu for state in inventory.gpus)
        if gpus != self._gpus or self._generated is None:
            self._gpus = gpus
            self._generated = generate_layouts(generator_input(inventory))

    def of(self, layout: str) -> Wish:
        """What that label value means now. Needs the hardware to be known."""
        assert self._gpus is not None
        try:
            found = find_layout(layout, self._user.read(), self._fallbacks())
            target = resolve(found, self._gpus)
        except MigManagerError as error:
            return Wish(layout, None, error.message, error=error)
        return Wish(layout, content_hash(target), None, target=target)

    def layouts(self) -> LayoutBook | None:
        """Every layout that can be asked for now; None while there is none, or the user's file is unusable."""
        state = self._user.read()
        if state.problem is not None:
            return None
        book = state.book
        for fallback in self._fallbacks():
            book = fallback if book is None else book.merged_over(fallback)
        return book

    def _fallbacks(self) -> Sequence[LayoutBook]:
        default = self._default.read().book if self._default is not None else None
        return [book for book in (default, self._generated) if book is not None]
