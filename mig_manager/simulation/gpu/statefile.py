"""A JSON file that several processes share: cheap to read, changed by one at a time, replaced as a whole."""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")


class StateFile(Generic[T]):
    """One JSON document of type T in a file.

    Readers never lock: they keep the parsed document until the file is another one. Writers hold an flock on
    `<file>.lock`, which also keeps out other threads, and put a new file in the old one's place.
    """

    def __init__(self, path: Path, *, written: Callable[[T], None] | None = None) -> None:
        """`written` is called with each document that was written, before others may write."""
        self.path = path
        self._written = written
        self._seen: tuple[int, bytes, T] | None = None

    def write_new(self, document: T) -> None:
        """Write the first document, or put it in the place of whatever lies there."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.hold("lock"):
            self._replace(document, json.dumps(document).encode(), after=0)

    def read(self) -> T:
        """The document as it is now. Shared between callers: do not change it."""
        return self._look()[2]

    @contextmanager
    def change(self) -> Iterator[T]:
        """A copy to change; written when the block ends, dropped when it raises. Others wait."""
        with self.hold("lock"):
            changed, text, _ = self._look()
            document: T = json.loads(text)
            yield document
            new = json.dumps(document).encode()
            if new != text:
                self._replace(document, new, after=changed)

    @contextmanager
    def hold(self, name: str) -> Iterator[None]:
        """A lock of its own, `<file>.<name>`, shared by all threads and processes."""
        # Opened anew each time: an flock belongs to the open file, so threads keep each other out as well.
        fd = os.open(f"{self.path}.{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def _look(self) -> tuple[int, bytes, T]:
        """When the file was changed, its text, and what that says."""
        seen = self._seen
        if seen is None or seen[0] != os.stat(self.path).st_mtime_ns:
            with open(self.path, "rb") as file:
                changed, text = os.fstat(file.fileno()).st_mtime_ns, file.read()
            seen = self._seen = (changed, text, json.loads(text))
        return seen

    def _replace(self, document: T, text: bytes, *, after: int) -> None:
        new = f"{self.path}.new"
        with open(new, "wb") as file:
            file.write(text)
        # The kernel's file times are coarse and inode numbers come back at once: only a modification time
        # that always grows tells one version from the next.
        stamp = max(time.time_ns(), after + 1)
        os.utime(new, ns=(stamp, stamp))
        os.replace(new, self.path)
        self._seen = (stamp, text, document)
        if self._written is not None:
            self._written(document)


def process_start(pid: int) -> int | None:
    """When a process began, in clock ticks since boot; None when it does not run (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])
