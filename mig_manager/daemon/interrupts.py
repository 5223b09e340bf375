"""What breaks off the waits of a run: the end of the daemon, and another wish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


class WishChangedError(Exception):
    """The label or the layout changed while a run waited; it starts over."""


class UsersChangedError(Exception):
    """What was idle is in use by now, and the layout can be had by changing something else; the run starts over."""


class StoppingError(Exception):
    """The daemon has been asked to end."""


class Interrupts:
    """Is asked before each look of each wait; what it raises ends the wait."""

    def __init__(self, changed: Callable[[], bool]) -> None:
        """`changed`: whether the Node asks for something else than the run is about."""
        self._changed = changed
        self._may_start_over = False
        self.stopping = False

    def check(self) -> None:
        """Come back only if the wait may go on. Raises StoppingError or WishChangedError."""
        if self.stopping:
            raise StoppingError
        if self._may_start_over and self._changed():
            raise WishChangedError

    @contextmanager
    def free_to_start_over(self) -> Iterator[None]:
        """Within the block, a changed wish ends every wait; outside only the end of the daemon does."""
        self._may_start_over = True
        try:
            yield
        finally:
            self._may_start_over = False
