"""`kubectl-mig`, which kubectl runs as `kubectl mig`: its commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from mig_manager import __version__
from mig_manager.cli.ending import run_command, run_program
from mig_manager.cli.kubectl import doctor, explain, layouts, plan, set_, show, status, web
from mig_manager.cli.output import write

_EPILOG = """\b
Exit codes: 0 done or feasible, 1 not as asked for, 2 bad input or infeasible,
3 the API server refused.
"""

app = typer.Typer(
    name="kubectl-mig",
    help="See and change how the GPUs of a cluster are partitioned.",
    epilog=_EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (status, show, layouts, plan, web, set_, explain, doctor):
    module.add_to(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        write(f"kubectl-mig {__version__}\n")
        raise typer.Exit


@app.callback()
def _everywhere(
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Options that stand before the command."""


def command_line(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; see `run_command`."""
    return run_command(app, "kubectl mig", arguments)


def main() -> None:
    """The console script."""
    run_program(app, "kubectl mig")


if __name__ == "__main__":
    main()
