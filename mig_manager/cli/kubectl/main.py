"""`kubectl-mig`, which kubectl runs as `kubectl mig`: its commands."""

from __future__ import annotations

from collections.abc import Sequence

from mig_manager.cli.ending import run_command, run_program
from mig_manager.cli.kubectl import doctor, explain, layouts, plan, set_, show, status, web
from mig_manager.cli.program import new_app

_EPILOG = """\b
Exit codes: 0 done or feasible, 1 not as asked for, 2 bad input or infeasible,
3 the API server refused.
"""

app = new_app(
    "kubectl-mig",
    about="See and change how the GPUs of a cluster are partitioned.",
    epilog=_EPILOG,
    commands=(status, show, layouts, plan, web, set_, explain, doctor),
)


def command_line(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; see `run_command`."""
    return run_command(app, "kubectl mig", arguments)


def main() -> None:
    """The console script."""
    run_program(app, "kubectl mig")


if __name__ == "__main__":
    main()
