"""Where layouts come from: a ConfigMap or a file, a default file, and the node's own hardware."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mig_manager.cluster.objects import ConfigMap
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.book import LayoutBook
from mig_manager.layouts.layout import Layout
from mig_manager.layouts.schema import parse_layouts, read_layouts


@dataclass(frozen=True, slots=True)
class BookState:
    """The user's layout file as it is now. Without book and problem: there is none."""

    book: LayoutBook | None = None
    problem: MigManagerError | None = None
    """Why the file cannot be used."""


class BookSource(Protocol):
    """A layout file that is kept up to date in the background."""

    def read(self) -> BookState:
        """The file as last seen; parsed once for each change."""
        ...


class ConfigMapSource:
    """Layouts from a ConfigMap that a watch keeps current."""

    def __init__(self, watch: ObjectWatch[ConfigMap], key: str, place: str) -> None:
        """`place` is the ConfigMap's `namespace/name`, for messages."""
        self._watch = watch
        self._key = key
        self._place = place
        self._seen: tuple[str, BookState] = ("", BookState())

    def read(self) -> BookState:
        """The ConfigMap as last seen."""
        if not self._watch.synced:
            why = self._watch.problem or "it has not been read yet"
            message = f"ConfigMap {self._place} with the layouts: {why}"
            return BookState(problem=MigManagerError(Reason.API_ERROR, message))
        config_map = self._watch.sole
        if config_map is None:
            return BookState()
        version = f"{config_map.uid}/{config_map.resource_version}"
        if version != self._seen[0]:
            self._seen = (version, self._parse(config_map.data))
        return self._seen[1]

    def _parse(self, data: Mapping[str, str]) -> BookState:
        if self._key not in data:
            keys = ", ".join(sorted(data)) or "no keys at all"
            message = f"ConfigMap {self._place} has no key {self._key!r}; it has {keys}"
            return BookState(problem=MigManagerError(Reason.INVALID_LAYOUT, message))
        return _parsed(lambda: parse_layouts(data[self._key], file=f"{self._place}/{self._key}"))


class FileSource:
    """Layouts from a file, read again when it changes.

    A mounted ConfigMap changes by the swap of a link beside the file, so its folder is watched.
    """

    def __init__(self, path: Path, changed: Callable[[], None]) -> None:
        """`changed` is called after each change, from another thread."""
        self._path = path
        self._changed = changed
        self._stop = threading.Event()
        self._state = self._load()
        self._thread = threading.Thread(target=self._follow, name="layout-file", daemon=True)

    def start(self) -> None:
        """Begin to follow the file."""
        self._thread.start()

    def stop(self) -> None:
        """Stop following it."""
        self._stop.set()

    def read(self) -> BookState:
        """The file as last read."""
        return self._state

    def _load(self) -> BookState:
        return _parsed(lambda: read_layouts(self._path))

    def _follow(self) -> None:
        from watchfiles import watch

        while not self._stop.is_set():
            folder = self._path.parent
            if not folder.is_dir():
                self._stop.wait(5.0)
                continue
            for _ in watch(folder, stop_event=self._stop, recursive=False, raise_interrupt=False):
                state = self._load()
                if state != self._state:
                    self._state = state
                    self._changed()


def _parsed(load: Callable[[], LayoutBook]) -> BookState:
    try:
        return BookState(book=load())
    except MigManagerError as problem:
        return BookState(problem=problem)


def find_layout(name: str, user: BookState, fallbacks: Sequence[LayoutBook]) -> Layout:
    """The layout of that name: the user's file wins, then the fallbacks in their order.

    Raises:
        MigManagerError: InvalidLayout where the user's file cannot be used, since it might define the name;
            UnknownLayout where nobody has the name.
    """
    if user.problem is not None:
        raise user.problem
    book = user.book
    for fallback in fallbacks:
        book = fallback if book is None else book.merged_over(fallback)
    if book is None:
        raise MigManagerError(
            Reason.UNKNOWN_LAYOUT, f"there is no layout file, so no layout is named {name!r}"
        )
    return book.get(name)
