"""How every command ends: with an exit code, and one message on stderr where something went wrong."""

from __future__ import annotations

import io
import os
import sys
import traceback
from collections.abc import Sequence

import typer

from mig_manager.cli.errors import ExitCode, InputError, exit_code, told
from mig_manager.cli.output import complain
from mig_manager.errors import MigManagerError


def run_command(app: typer.Typer, program: str, arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; whatever goes wrong is one message on stderr."""
    try:
        code = app(args=list(arguments) or ["--help"], prog_name=program, standalone_mode=False)
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


def run_program(app: typer.Typer, program: str) -> None:
    """The body of a console script: run the command of sys.argv, and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name in a layout file may hold characters that this terminal has no code for.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run_command(app, program, sys.argv[1:]))
