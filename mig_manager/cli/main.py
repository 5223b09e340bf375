"""`mig-manager`: the commands, and how every one of them ends."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from mig_manager import __version__
from mig_manager.cli import (
    apply,
    assert_,
    checkpoint,
    create,
    demo,
    destroy,
    export,
    generate,
    listing,
    plan,
    release,
    run,
)
from mig_manager.cli.errors import ExitCode, InputError, exit_code, told
from mig_manager.cli.output import complain, write
from mig_manager.errors import MigManagerError

_EPILOG = """\b
Examples:
  mig-manager demo
  mig-manager plan --simulate 8xA100-SXM4-80GB -c all-balanced
  mig-manager plan -f layouts.yaml
  mig-manager apply -f layouts.yaml -c all-1g.10gb
  mig-manager export > layouts.yaml

\b
Exit codes: 0 done or feasible, 1 asserted and differs, 2 bad input or
infeasible, 3 the GPU refused.
"""

app = typer.Typer(
    name="mig-manager",
    help="Re-partition the NVIDIA GPUs of a node, and touch the least.",
    epilog=_EPILOG,
    add_completion=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    plan,
    apply,
    assert_,
    export,
    generate,
    checkpoint,
    listing,
    create,
    destroy,
    run,
    release,
    demo,
):
    module.add_to(app)


def _print_version(wanted: bool) -> None:
    if wanted:
        write(f"mig-manager {__version__}\n")
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
    """Run one command and give its exit code; whatever goes wrong is one message on stderr."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name="mig-manager", standalone_mode=False)
    except typer.TyperException as error:
        complain("error: " + error.format_message().replace("Value error, ", ""))
        context = getattr(error, "ctx", None)
        if context is not None:
            complain(f"Try '{context.command_path} --help'.")
        return ExitCode.BAD_INPUT
    except MigManagerError as error:
        complain(told(error))
        return exit_code(error)
    except InputError as error:
        complain(f"error: {error}")
        return ExitCode.BAD_INPUT
    except (KeyboardInterrupt, typer.Abort):
        return ExitCode.INTERRUPTED
    except Exception as error:  # noqa: BLE001  (the last resort: a user never sees a traceback unasked)
        if os.environ.get("MIG_MANAGER_DEBUG"):
            traceback.print_exc()
        complain(
            f"error: this is a mistake in mig-manager, please report it: {type(error).__name__}: {error}\n"
            "MIG_MANAGER_DEBUG=1 shows where it happened."
        )
        return ExitCode.BUG
    return code if isinstance(code, int) else ExitCode.DONE


def main() -> None:
    """The console script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name in a layout file may hold characters that this terminal has no code for.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(command_line(sys.argv[1:]))


if __name__ == "__main__":
    main()
