"""What layouts mean on a node, as far as the API tells: by its ConfigMap, else by what its hardware offers."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mig_manager.cli.choice import all_layouts, choose
from mig_manager.cli.errors import InputError
from mig_manager.cli.kubectl.gpus import gpus_of, plugin_strategy
from mig_manager.cli.kubectl.layoutsource import config_map_source, layout_source
from mig_manager.cluster.refusal import ApiError
from mig_manager.daemon.layoutsfrom import LayoutsFrom
from mig_manager.daemon.status import LAYOUTS_FROM_ANNOTATION
from mig_manager.errors import MigManagerError
from mig_manager.layouts.book import content_hash, resolve

if TYPE_CHECKING:
    from mig_manager.cli.kubectl.cluster import GpuNode
    from mig_manager.cluster.client import Api
    from mig_manager.layouts.book import LayoutBook
    from mig_manager.planning.state import Inventory


@dataclass(frozen=True, slots=True)
class Written:
    """The layouts that somebody has written for a node."""

    book: LayoutBook | None
    """None where there are none, or none that can be read from here."""
    words: str
    """Where they are from, or why they cannot be read."""
    unread: str = ""
    """What else may define names, in words, such as a file on the node that only its daemon can read."""


_NOT_USABLE = "not usable"


def takes_no_layout(words: str = "") -> str:
    """What to say of a node that can take no layout, with where its layouts are from or why they cannot be read."""
    if words.startswith(_NOT_USABLE):
        return f"it can take no layout now: its layout file is {words}"
    where = f" (layouts: {words})" if words else ""
    return f"it can take no layout now: its layout file cannot be used, or its GPUs have no MIG{where}"


@dataclass(frozen=True, slots=True)
class Meaning:
    """What layouts mean on one node."""

    inventory: Inventory
    exact: bool
    """Whether the node has told all of its GPUs; else a part is assumed from the catalogue."""
    strategy: str
    """The device plugin's."""
    written: Written
    book: LayoutBook
    """What is written, over what is generated from the hardware."""

    def is_written(self, layout: str) -> bool:
        """Whether what can be read defines that name."""
        return self.written.book is not None and layout in self.written.book.layouts

    def refusal(self, layout: str) -> str | None:
        """Why the node cannot take that layout now; None if it can. Of what is not known here it tells that."""
        try:
            choose(self.book, layout, self.inventory)
        except MigManagerError as error:
            return " ".join(error.message.split())
        return None

    def hash(self, layout: str) -> str | None:
        """Hash of what the layout means, as the daemon's status has it; None where that is not known for certain."""
        if not (self.exact and self.is_written(layout)):
            return None
        try:
            return content_hash(resolve(self.book.get(layout), [state.gpu for state in self.inventory.gpus]))
        except MigManagerError:
            return None


def known_meanings(api: Api, nodes: Iterable[GpuNode]) -> dict[str, Meaning]:
    """By name of the Node; those that have not told what GPUs they have are left out. Raises ApiError."""
    meanings, found = Meanings(api), {}
    for node in nodes:
        with suppress(InputError):
            found[node.name] = meanings.of(node)
    return found


class Meanings:
    """Finds out what layouts mean on nodes; reads each ConfigMap once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read: dict[LayoutsFrom | None, Written] = {}

    def of(self, node: GpuNode) -> Meaning:
        """On that node.

        Raises:
            InputError: it has not told what GPUs it has.
            ApiError: the API server refuses for another reason than a missing permission.
        """
        reading = gpus_of(node)
        written = self.written(node)
        return Meaning(
            reading.inventory,
            not reading.missing,
            plugin_strategy(node, reading.inventory),
            written,
            all_layouts(written.book, reading.inventory),
        )

    def written(self, node: GpuNode) -> Written:
        """What is written for that node. Raises ApiError as `of`."""
        place = LayoutsFrom.from_json(node.node.meta.annotations.get(LAYOUTS_FROM_ANNOTATION))
        if place not in self._read:
            self._read[place] = self._written(place)
        return self._read[place]

    def _written(self, place: LayoutsFrom | None) -> Written:
        if place is not None and not place.config_map:
            files = " and ".join(name for name in (place.file, place.default_file) if name)
            return Written(None, f"{files} on the node, which cannot be read from here", files)
        unread = place.default_file if place is not None else ""
        try:
            if place is None:
                source = layout_source(self._api, None, None)
            else:
                source = config_map_source(self._api, place.config_map, place.key)
        except InputError as error:
            return Written(None, str(error), unread)
        except ApiError as error:
            if error.status != 403:
                raise
            return Written(None, f"the ConfigMap may not be read: {error.message}", unread or "the ConfigMap")
        except MigManagerError as error:
            return Written(None, f"{_NOT_USABLE}: {error.message}", unread)
        return Written(source.book, source.words, unread)
