"""`kubectl mig doctor`: whether mig-manager is in order, and what to do where it is not."""

from __future__ import annotations

import typer

from mig_manager.cli.errors import ExitCode
from mig_manager.cli.kubectl.options import Context, Format, KubeconfigFile, NodeNames, Output, Selector

_EXAMPLES = """\b
Examples:
  kubectl mig doctor
  kubectl mig doctor gpu-1 gpu-2
  kubectl mig doctor -l pool=training -o json

Exits with 0 where nothing is wrong (warnings do not count), 1 with a problem, 3 where the API server refuses.
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("doctor", epilog=_EXAMPLES, short_help="Check whether everything is in order.")(doctor)


def doctor(
    nodes: NodeNames = None,
    selector: Selector = None,
    output: Output = Format.TEXT,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Check the installation: permissions, daemons, driver, device plugin, leftovers of broken runs, other owners.

    Touches nothing. What you may not read is said to be unknown.
    """
    from mig_manager.cli.kubectl.checking.examination import examine
    from mig_manager.cli.kubectl.checking.gather import read_snapshot
    from mig_manager.cli.kubectl.checking.snapshot import Verdict
    from mig_manager.cli.kubectl.checking.words import check_documents, check_lines, troubled
    from mig_manager.cli.kubectl.cluster import connect
    from mig_manager.cli.kubectl.wrapping import limit
    from mig_manager.cli.options import Listing
    from mig_manager.cli.output import Screen, write, write_listing

    with connect(kubeconfig, context) as api:
        checks = tuple(examine(read_snapshot(api, nodes, selector)))
    if output is Format.NAME:
        write("".join(f"node/{name}\n" for name in troubled(checks)))
    elif output in (Format.JSON, Format.YAML):
        write_listing(check_documents(checks), Listing(output))
    else:
        screen = Screen()
        screen.lines(check_lines(checks, wide=output is Format.WIDE, width=limit(screen)))
    if any(each.verdict is Verdict.PROBLEM for each in checks):
        raise typer.Exit(ExitCode.DIFFERS)
