"""What the two programs have in common: how they are put together."""

from __future__ import annotations

from collections.abc import Iterable
from types import ModuleType

import typer

from mig_manager import __version__
from mig_manager.cli.output import write


def new_app(name: str, *, about: str, epilog: str, commands: Iterable[ModuleType]) -> typer.Typer:
    """A program with the commands of these modules, each of which has `add_to(app)`, and `--version`."""
    app = typer.Typer(
        name=name,
        help=about,
        epilog=epilog,
        add_completion=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for module in commands:
        module.add_to(app)

    def print_version(wanted: bool) -> None:
        if wanted:
            write(f"{name} {__version__}\n")
            raise typer.Exit

    version = typer.Option(
        False, "--version", help="Print the version and exit.", callback=print_version, is_eager=True
    )

    @app.callback()
    def everywhere(_version: bool = version) -> None:
        """Options that stand before the command."""

    return app
