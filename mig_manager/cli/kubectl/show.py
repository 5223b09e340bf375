"""`kubectl mig show`: the GPUs of a node as a picture, and which pods use them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.kubectl.options import Context, Format, KubeconfigFile, Output

if TYPE_CHECKING:
    from mig_manager.cli.kubectl.cluster import GpuNode
    from mig_manager.cli.kubectl.showing import Shown
    from mig_manager.cluster.client import Api

_EXAMPLES = """\b
Examples:
  kubectl mig show gpu-1
  kubectl mig show gpu-1 -o json
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("show", epilog=_EXAMPLES, short_help="The GPUs of a node as a picture, with their pods.")(
        show
    )


def show(
    node: Annotated[str, typer.Argument(metavar="NODE", help="Name of the Node.")],
    output: Output = Format.TEXT,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Draw the memory slices of each GPU: instances, which are in use and by which pods, and what is free.

    Which device of a type a pod has been given, only the kubelet knows. Where all devices of a type are in use, or
    none is, and with ResourceClaims, it is told exactly; else `in use?` stands at those that may be.
    """
    from mig_manager.cli.kubectl.cluster import connect, find_nodes
    from mig_manager.cli.kubectl.showing import shown_document, shown_lines
    from mig_manager.cli.options import Listing
    from mig_manager.cli.output import Screen, write, write_listing

    with connect(kubeconfig, context) as api:
        (found,) = find_nodes(api, [node])
        shown = shown_node(api, found)
    if output is Format.NAME:
        write(f"node/{shown.name}\n")
    elif output in (Format.JSON, Format.YAML):
        write_listing(shown_document(shown), Listing(output))
    else:
        screen = Screen()
        screen.lines(shown_lines(shown, screen.look, wide=output is Format.WIDE))


def shown_node(api: Api, node: GpuNode) -> Shown:
    """Read what there is to show of a node. Raises InputError where it tells nothing of its GPUs, and ApiError."""
    from mig_manager.cli.kubectl.cluster import pod_objects
    from mig_manager.cli.kubectl.gpus import gpus_of, plugin_strategy
    from mig_manager.cli.kubectl.showing import Shown
    from mig_manager.cli.kubectl.use import Tenant, node_use, read_claims
    from mig_manager.cluster.resources import advertised

    reading = gpus_of(node)
    strategy = plugin_strategy(node, reading.inventory)
    tenants = [Tenant.from_json(each) for each in pod_objects(api, node.name)]
    claims, slices = read_claims(api, node.name, tenants)
    use = node_use(reading.inventory, strategy, advertised(node.node), tenants, claims, slices)
    facts = {"layout": node.wanted, "state": node.state, "strategy": strategy}
    told = {key: value for key, value in facts.items() if value}
    return Shown(node.name, told, strategy, reading.inventory, use, reading.missing)
