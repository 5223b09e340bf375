"""`kubectl mig status`: what nodes were asked for, what they have, and how far their runs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.errors import ExitCode
from mig_manager.cli.kubectl.options import Context, Format, KubeconfigFile, NodeNames, Output, Selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mig_manager.cli.kubectl.following import Following
    from mig_manager.cli.kubectl.standing import PodUse, Standing
    from mig_manager.cluster.client import Api

_EXAMPLES = """\b
Examples:
  kubectl mig status
  kubectl mig status gpu-1 -w
  kubectl mig status -l pool=training -o wide
  kubectl mig status -o json

\b
Exits with 0 where all of these nodes have the layout that they were asked for,
with 1 where one of them does not, or not yet.
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("status", epilog=_EXAMPLES, short_help="Layout, state and use of nodes.")(status)


def status(
    nodes: NodeNames = None,
    selector: Selector = None,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Follow them until Ctrl-C: in place on a terminal.")
    ] = False,
    output: Output = Format.TEXT,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Show what nodes were asked for, how that stands, and what their GPUs are used for."""
    from mig_manager.cli.kubectl.cluster import connect, find_nodes, nobody
    from mig_manager.cli.kubectl.following import Following
    from mig_manager.cli.kubectl.standing import standings
    from mig_manager.cli.output import complain

    with connect(kubeconfig, context) as api:
        found = find_nodes(api, nodes, selector)
        if watch:
            with Following(api, [each.name for each in found] if nodes else (), selector) as following:
                _follow(following, output)
            return
        if not found and output in (Format.TEXT, Format.WIDE):
            complain(nobody(selector))
        shown = standings(found, _pods(api, [each.name for each in found]))
    _print(shown, output)
    if not all(each.as_asked for each in shown) or (selector and not shown):
        raise typer.Exit(ExitCode.DIFFERS)


def _pods(api: Api, nodes: Sequence[str]) -> tuple[PodUse, ...] | None:
    """The pods on these nodes, or on more; None where they may not be read."""
    from mig_manager.cli.kubectl.cluster import pod_objects
    from mig_manager.cli.kubectl.standing import PodUse
    from mig_manager.cluster.refusal import ApiError

    try:
        objects = pod_objects(api, nodes[0] if len(nodes) == 1 else None) if nodes else []
    except ApiError as error:
        if error.status != 403:
            raise
        return None
    return tuple(map(PodUse.from_json, objects))


def _print(shown: Sequence[Standing], output: Format) -> None:
    from mig_manager.cli.options import Listing
    from mig_manager.cli.output import Screen, write, write_listing

    if output is Format.NAME:
        write("".join(f"node/{each.name}\n" for each in shown))
    elif output in (Format.JSON, Format.YAML):
        write_listing({"nodes": [each.document() for each in shown]}, Listing(output))
    elif shown:
        from mig_manager.cli.kubectl.statustable import StatusTable
        from mig_manager.cli.kubectl.wrapping import limit

        screen = Screen()
        screen.lines(StatusTable(wide=output is Format.WIDE, width=limit(screen)).lines(shown))


def _follow(following: Following, output: Format) -> None:
    """Until Ctrl-C: a table that changes in place on a terminal, else a line for each change."""
    from mig_manager.cli.kubectl.watching import follow_documents, follow_in_lines, follow_in_place
    from mig_manager.cli.output import Screen

    if output not in (Format.TEXT, Format.WIDE):
        follow_documents(following, output)
        return
    screen = Screen()
    if screen.moving is not None:
        follow_in_place(following, screen, screen.moving, wide=output is Format.WIDE)
    else:
        follow_in_lines(following, screen, wide=output is Format.WIDE)
