"""How every command ends: with an exit code, and one message on stderr where something went wrong."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
from collections.abc import Sequence

import typer

from mig_manager.cli.errors import ExitCode, InputError, exit_code, told
from mig_manager.cli.output import complain
from mig_manager.cli.program import built
from mig_manager.errors import MigManagerError

_CHOICE = re.compile("'(?P<found>[^']*)' is not one of (?P<allowed>'.*')")


def run_command(app: typer.Typer, program: str, arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; whatever goes wrong is one message on stderr."""
    try:
        run = built(app, arguments[0] if arguments else None)
        code = run(args=list(arguments) or ["--help"], prog_name=program, standalone_mode=False)
    except typer.TyperException as error:
        complain(f"error: {_in_words(error)}")
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


def _in_words(error: typer.TyperException) -> str:
    """What is wrong with a command line, with what was found and the nearest choice."""
    from pydantic import ValidationError

    from mig_manager.layouts.findings import hint
    from mig_manager.layouts.suggest import nearest

    words = error.format_message().replace("Value error, ", "")
    if (choice := _CHOICE.search(words)) is not None:
        near = nearest(choice["found"], re.findall("'([^']*)'", choice["allowed"]), 1)
        return words.removesuffix(".") + (hint(near) or ".")
    if isinstance(error.__cause__, ValidationError):
        found = error.__cause__.errors()[0]["input"]
        return words.partition(", unable to")[0].replace("Input should", f"{found!r} should")
    return words


def run_program(app: typer.Typer, program: str) -> None:
    """The body of a console script: run the command of sys.argv, and exit."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name in a layout file may hold characters that this terminal has no code for.
        sys.stdout.reconfigure(errors="backslashreplace")
    sys.exit(run_command(app, program, sys.argv[1:]))
