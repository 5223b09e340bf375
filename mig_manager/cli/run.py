"""`mig-manager run`: become the daemon."""

from __future__ import annotations

import os
import sys

import typer


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "run",
        short_help="Run the daemon of this node; `run --help` lists its settings.",
        add_help_option=False,
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    )(run)


def run(context: typer.Context) -> None:
    """Run the daemon of this node; `run --help` lists its settings."""
    # A fresh interpreter: what the command line has loaded does not stay in the daemon's memory.
    os.execv(sys.executable, [sys.executable, "-m", "mig_manager.daemon", *context.args])
