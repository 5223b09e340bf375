"""What the two programs have in common: how they are put together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import copy
from functools import cache
from types import ModuleType
from typing import Any

import typer
from typer.core import TyperArgument, TyperCommand
from typer.main import get_command

from mig_manager import __version__
from mig_manager.cli.output import write


class _Command(TyperCommand):
    """A command whose help shows arguments as their metavar has them, without the types of Python."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [each for each in self.get_params(ctx) if isinstance(each, TyperArgument)]
        return ["[OPTIONS]", *(each.display_name_raw for each in arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        arguments, options = [], []
        for param in self.get_params(ctx):
            if (record := param.get_help_record(ctx)) is None:
                continue
            if isinstance(param, TyperArgument):
                arguments.append((record[0].partition(" <")[0], record[1]))
            else:
                options.append(record)
        for title, records in (("Arguments", arguments), ("Options", options)):
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class _App(typer.Typer):
    def command(self, *arguments: Any, **options: Any) -> Any:
        return super().command(*arguments, **{"cls": _Command} | options)


def new_app(name: str, *, about: str, epilog: str, commands: Iterable[ModuleType]) -> typer.Typer:
    """A program with the commands of these modules, each of which has `add_to(app)`, and `--version`."""
    app = _App(
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


@cache
def built(app: typer.Typer, command: str | None) -> Callable[..., Any]:
    """A program ready to be called. Where that is one of its commands, with no other: each takes a while to build."""
    only = copy(app)
    only.registered_commands = [each for each in app.registered_commands if each.name == command]
    return get_command(only if only.registered_commands else app)
