"""`mig-manager`: the commands, and how every one of them ends."""

from __future__ import annotations

from collections.abc import Sequence

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
    validate,
)
from mig_manager.cli.ending import run_command, run_program
from mig_manager.cli.program import new_app

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

app = new_app(
    "mig-manager",
    about="Re-partition the NVIDIA GPUs of a node, and touch the least.",
    epilog=_EPILOG,
    commands=(
        plan,
        validate,
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
    ),
)


def command_line(arguments: Sequence[str]) -> int:
    """Run one command and give its exit code; see `run_command`."""
    return run_command(app, "mig-manager", arguments)


def main() -> None:
    """The console script."""
    run_program(app, "mig-manager")


if __name__ == "__main__":
    main()
