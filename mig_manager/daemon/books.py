"""Where layouts come from: a ConfigMap or a file, a default file, and the node's own hardware."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from loguru import logger

from mig_manager.cluster.objects import ConfigMap
from mig_manager.cluster.watch import ObjectWatch
from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.book import LayoutBook
from mig_manager.layouts.schema import parse_layouts, read_layouts

_LOOK_S = 5.0
"""How often a layout file is looked at even where the kernel reports nothing, as on a network file system."""


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
        version = f"{config_map.uid}/{config_map.resource_version}" if config_map is not None else ""
        if version != self._seen[0]:
            self._seen = (version, self._parse(config_map.data) if config_map is not None else BookState())
        return self._seen[1]

    def _parse(self, data: Mapping[str, str]) -> BookState:
        if self._key not in data:
            keys = ", ".join(map(repr, sorted(data))) or "none"
            message = f"ConfigMap {self._place} has no key {self._key!r}; its keys: {keys}"
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
        self._looks = self._look()
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
        state = _parsed(lambda: read_layouts(self._path))
        if state.problem is not None:
            logger.warning("The layout file cannot be used: {}", state.problem.message)
        return state

    def _look(self) -> tuple[int, ...]:
        """What changes when the file does, without reading it."""
        try:
            found = os.stat(self._path)
        except OSError as error:
            return (error.errno or 0,)
        return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)

    def _follow(self) -> None:
        from watchfiles import watch

        while not self._stop.is_set():
            try:
                news = watch(
                    self._path.parent,
                    stop_event=self._stop,
                    recursive=False,
                    rust_timeout=round(_LOOK_S * 1000),
                    yield_on_timeout=True,
                    raise_interrupt=False,
                )
                for _ in news:
                    self._compare()
                    if not self._path.parent.is_dir():
                        break
            except OSError as error:
                # No folder yet, or no more inotify instances on this machine.
                logger.debug("{} is only looked at now and then: {}", self._path.parent, error)
            self._stop.wait(_LOOK_S)
            self._compare()

    def _compare(self) -> None:
        looks = self._look()
        if looks != self._looks:
            self._looks = looks
            self._state = self._load()
            self._changed()


def _parsed(load: Callable[[], LayoutBook]) -> BookState:
    try:
        return BookState(book=load())
    except MigManagerError as problem:
        return BookState(problem=problem)
