"""What the commands print. A reader that goes away (`| head`) ends the printing, never the work."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import typer

from mig_manager.cli.errors import ExitCode

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from mig_manager.cli.options import Listing
    from mig_manager.cli.render import Look


_PLAIN_WIDTH = 100


def write(text: str) -> None:
    """Print text on stdout as it is."""
    with _told_where_it_fails():
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output()


def write_json(document: object) -> None:
    """Print a document on stdout."""
    write(json.dumps(document, indent=2) + "\n")


def write_listing(document: object, output: Listing) -> None:
    """Print a document on stdout, as JSON or YAML."""
    if output == "json":
        write_json(document)
        return
    import yaml

    write(yaml.safe_dump(document, sort_keys=False, allow_unicode=True))


def complain(text: str) -> None:
    """Print text on stderr."""
    try:
        sys.stderr.write(text + "\n")
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


@contextmanager
def _told_where_it_fails() -> Iterator[None]:
    """Where stdout cannot be written, such as a file on a full disk, that is said, and the command ends."""
    try:
        yield
    except OSError as error:
        drop_output()
        complain(f"error: stdout cannot be written: {error.strerror}")
        raise typer.Exit(ExitCode.REFUSED) from error


def drop_output() -> None:
    """Send what is still to come on stdout nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class Screen:
    """stdout for pictures: coloured boxes on a terminal, plain ASCII everywhere else and with NO_COLOR."""

    def __init__(self) -> None:
        from rich.console import Console

        from mig_manager.cli.render import PLAIN, Look

        class Quiet(Console):
            def on_broken_pipe(self) -> None:
                self.quiet = True
                drop_output()

        console = Quiet(highlight=False, markup=False, emoji=False)
        self.moving: Console | None = (
            console if console.is_terminal and not console.is_dumb_terminal else None
        )
        """For what changes in place; None where nothing can."""
        colour = self.moving is not None and not console.no_color
        self.look: Look = Look(True, console.encoding.startswith("utf")) if colour else PLAIN
        self.width = console.width if console.is_terminal else _PLAIN_WIDTH
        """Columns to write in: those of the terminal, or 100 where there is none."""
        self._console = console if colour else Quiet(color_system=None, force_terminal=False)

    def busy(self, text: str) -> AbstractContextManager[object]:
        """On a terminal, show that something goes on below the last line, for the length of a block."""
        return self._console.status(text, spinner="line") if self.look.colour else nullcontext()

    def lines(self, lines: Iterable[Text]) -> None:
        """Print lines, never wrapped or cropped."""
        for line in lines:
            with _told_where_it_fails():
                self._console.print(line, soft_wrap=True)
