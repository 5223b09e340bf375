"""What the Node's label asks for, held against the layout files and the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from loguru import logger

from mig_manager.daemon.books import BookSource, BookState
from mig_manager.daemon.status import Origin
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.book import LayoutBook, content_hash, resolve
from mig_manager.layouts.generate import GeneratorInput, generate_layouts
from mig_manager.layouts.layout import Layout, NodeTarget, label_can_hold
from mig_manager.planning.offers import offers
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import Inventory

_MOST_NAMES = 500
"""More would not fit on a Node, and planning for each of them takes a while."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A layout name, and what it means on this node. Two wishes are equal when they mean the same."""

    layout: str
    hash: str | None
    """Hash of the target; None where there is none."""
    problem: str | None = None
    """Why there is no target, in words."""
    origin: Origin | None = field(default=None, compare=False)
    """Who defines the layout."""
    target: NodeTarget | None = field(default=None, compare=False)
    error: MigManagerError | None = field(default=None, compare=False)

    def must(self) -> NodeTarget:
        """The target. Raises the MigManagerError that stands in its way."""
        if self.target is None:
            assert self.error is not None
            raise self.error
        return self.target

    def lost(self, now: Wish) -> bool:
        """Whether the definition of this wish is gone, so that nobody asked for what its name means `now`."""
        if self.layout != now.layout or self.problem is not None or self == now:
            return False
        if now.target is None or now.origin is None:
            return True
        return self.origin is not None and now.origin.rank > self.origin.rank


class Wishes:
    """Turns label values into wishes. Knows the GPUs as the last run read them."""

    def __init__(self, user: BookSource, default: BookSource | None = None) -> None:
        self._user = user
        self._default = default
        self._inventory: Inventory | None = None
        self._offered: tuple[GeneratorInput, ...] | None = None
        self._generated: LayoutBook | None = None

    @property
    def inventory(self) -> Inventory:
        """The GPUs as last read, once they are known."""
        assert self._inventory is not None
        return self._inventory

    @property
    def know_hardware(self) -> bool:
        """Whether the GPUs have been read at least once; before that no wish has a meaning."""
        return self._inventory is not None

    @property
    def mig_capable(self) -> bool:
        """Whether any GPU has MIG, as far as is known."""
        return self._inventory is not None and any(state.gpu.mig_capable for state in self._inventory.gpus)

    def learn(self, inventory: Inventory) -> None:
        """Take note of the GPUs of this node."""
        self._inventory = inventory
        offered = offers(inventory)
        if offered != self._offered:
            self._offered = offered
            self._generated = generate_layouts(offered)

    def of(self, layout: str) -> Wish:
        """What that label value means now. Needs the hardware to be known."""
        assert self._inventory is not None
        try:
            origin, found = self._find(layout)
            target = resolve(found, [state.gpu for state in self._inventory.gpus])
        except MigManagerError as failure:
            error = failure if self.mig_capable else _without_mig(layout, self._inventory, failure)
            return Wish(layout, None, error.message, error=error)
        return Wish(layout, content_hash(target), origin=origin, target=target)

    def sources(self) -> object:
        """Something that compares unequal once the layouts or the hardware have changed."""
        return self._user.read(), self._default_state(), self._offered

    def feasible(self) -> list[str]:
        """The names that its label can hold and this node can take now, sorted.

        Empty while the user's file is unusable. Of very many names only the first are looked at.
        """
        assert self._inventory is not None
        if self._user.read().problem is not None:
            return []
        all_names = dict.fromkeys(name for _, book in self._books() for name in book.layouts)
        names = [name for name in all_names if label_can_hold(name)]
        if len(names) > _MOST_NAMES:
            logger.warning(
                "There are {} layouts; only the first {} are listed on the Node", len(names), _MOST_NAMES
            )
        return sorted(name for name in names[:_MOST_NAMES] if self._possible(name, self._inventory))

    def _possible(self, name: str, inventory: Inventory) -> bool:
        try:
            plan_node(self.of(name).must(), inventory)
        except MigManagerError:
            return False
        return True

    def _find(self, name: str) -> tuple[Origin, Layout]:
        """The layout of that name: the user's file wins, then the default file, then the hardware.

        Raises:
            MigManagerError: the user's file cannot be used, and it might define the name; or nobody has it.
        """
        user = self._user.read()
        if user.problem is not None:
            raise user.problem
        for origin, book in self._books():
            if name in book.layouts:
                return origin, book.layouts[name]
        problem = self._default_state().problem
        if problem is not None:
            raise MigManagerError(
                Reason.UNKNOWN_LAYOUT, f"layout {name!r} is unknown, and the default file: {problem.message}"
            )
        (_, all_of_them), *others = self._books()
        for _, book in others:
            all_of_them = all_of_them.merged_over(book)
        return Origin.HARDWARE, all_of_them.get(name)

    def _books(self) -> Iterator[tuple[Origin, LayoutBook]]:
        books = (self._user.read().book, self._default_state().book, self._generated)
        for origin, book in zip(Origin, books, strict=True):
            if book is not None:
                yield origin, book

    def _default_state(self) -> BookState:
        return self._default.read() if self._default is not None else BookState()


def _without_mig(layout: str, inventory: Inventory, failure: MigManagerError) -> MigManagerError:
    """What keeps any layout from a node whose GPUs have no MIG."""
    models = ", ".join(dict.fromkeys(state.gpu.model for state in inventory.gpus))
    found = f"its GPUs ({models}) have no MIG" if models else "it has no GPU"
    message = f"Layout {layout!r} cannot be applied to this node, for {found}. Remove the label. ({failure.message})"
    return MigManagerError(failure.reason, message)
