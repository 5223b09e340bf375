"""`kubectl mig layouts`: what nodes can be asked for now, and what that gives."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from mig_manager.cli.errors import ExitCode, InputError
from mig_manager.cli.kubectl.options import Context, Format, KubeconfigFile, NodeNames, Output, Selector

if TYPE_CHECKING:
    from mig_manager.cli.kubectl.cluster import GpuNode
    from mig_manager.cli.kubectl.meaning import Meanings
    from mig_manager.cli.kubectl.possible import Choices

_EXAMPLES = """\b
Examples:
  kubectl mig layouts gpu-1
  kubectl mig layouts -l pool=inference -o wide
  kubectl mig layouts gpu-1 -o name

\b
Exits with 1 where a node that was named lists no layout, or no node is selected.
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("layouts", epilog=_EXAMPLES, short_help="What nodes can be asked for, and what each gives.")(
        layouts
    )


def layouts(
    nodes: NodeNames = None,
    selector: Selector = None,
    output: Output = Format.TEXT,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Show the layouts that nodes can take now, as mig-manager has found, and the resources that each gives.

    A * marks the one that a node is asked for.
    """
    from mig_manager.cli.kubectl.cluster import connect, find_nodes, nobody
    from mig_manager.cli.kubectl.meaning import Meanings
    from mig_manager.cli.kubectl.possible import choice_document, choice_lines
    from mig_manager.cli.kubectl.wrapping import limit
    from mig_manager.cli.options import Listing
    from mig_manager.cli.output import Screen, complain, write, write_listing

    with connect(kubeconfig, context) as api:
        meanings = Meanings(api)
        found = [_choices(node, meanings) for node in find_nodes(api, nodes, selector)]
    if output is Format.NAME:
        write("".join(f"{name}\n" for name in dict.fromkeys(n for one in found for n in one.node.layouts)))
    elif output in (Format.JSON, Format.YAML):
        write_listing({"nodes": [choice_document(each) for each in found]}, Listing(output))
    elif found:
        screen = Screen()
        screen.lines(choice_lines(found, wide=output is Format.WIDE, width=limit(screen)))
    else:
        complain(nobody(selector))
    if (nodes and not all(each.layouts for each in found)) or (selector and not found):
        raise typer.Exit(ExitCode.DIFFERS)


def _choices(node: GpuNode, meanings: Meanings) -> Choices:
    from mig_manager.cli.kubectl.possible import choices
    from mig_manager.daemon.status import LAYOUTS_ANNOTATION

    if LAYOUTS_ANNOTATION not in node.node.meta.annotations:
        return choices(node, None, "mig-manager has listed no layouts there yet; does it run there?")
    written = meanings.written(node).words
    if not node.layouts:
        return choices(node, None, f"no layout is possible there now; layouts: {written}")
    try:
        return choices(node, meanings.of(node), f"layouts: {written}")
    except InputError as error:
        return choices(node, None, f"what they give is not known: {error}")
