"""What breaks off the waits of a run: the end of the daemon, and another wish."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mig_manager.errors import MigManagerError, Reason


class WishChangedError(Exception):
    """The label or the layout changed while a run waited; it starts over."""


class UsersChangedError(Exception):
    """What was idle is in use by now, and the layout can be had by changing something else; the run starts over."""


class LabelGoneError(MigManagerError):
    """Nobody asks for a layout any more."""

    def __init__(self, label: str) -> None:
        super().__init__(Reason.INTERRUPTED, f"There is no label {label} any more.")


class StoppingError(Exception):
    """The daemon has been asked to end."""


class Interrupts:
    """Is asked before each look of each wait; what it raises ends the wait."""

    def __init__(self, changed: Callable[[], bool], gone: Callable[[], bool]) -> None:
        """Prepare it.

        Args:
            changed: whether the Node asks for something else than the run is about.
            gone: whether the Node has been deleted, whatever has its name now.
        """
        self._changed = changed
        self._gone = gone
        self._may_start_over = False
        self.stopping = False

    def check(self) -> None:
        """Come back only if the wait may go on.

        Raises:
            StoppingError, WishChangedError: as they say.
            MigManagerError: Interrupted; the Node has been deleted.
        """
        if self.stopping:
            raise StoppingError
        if self._gone():
            raise MigManagerError(Reason.INTERRUPTED, "The Node was deleted while the run was under way.")
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
