"""A copy of the journal on the host, for what must be put back while neither API server nor Node can be asked."""

from __future__ import annotations

import os
from pathlib import Path

from loguru import logger

from mig_manager.daemon.journal import Journal


class JournalFile:
    """The file. Nothing about it fails a run: the journal on the Node is the one that counts."""

    def __init__(self, path: Path | None) -> None:
        """None: there is no copy."""
        self._path = path

    def write(self, journal: Journal) -> None:
        """Replace the copy in one step; it is on the disk afterwards."""
        if self._path is None:
            return
        new = self._path.with_name(f".{self._path.name}.new")
        try:
            self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            with new.open("w", encoding="utf-8") as file:
                file.write(journal.to_json())
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, self._path)
            _sync(self._path.parent)
        except OSError as error:
            logger.warning("no copy of the journal at {}: {}", self._path, error.strerror or error)

    def read(self) -> Journal | None:
        """The copy; None where there is none."""
        try:
            return None if self._path is None else Journal.from_json(self._path.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError):
            return None

    def remove(self) -> None:
        """Nothing remains to be put back."""
        try:
            if self._path is not None:
                self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("the copy of the journal at {} stays: {}", self._path, error.strerror or error)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
