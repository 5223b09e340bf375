"""`kubectl mig plan`: what a layout would change on nodes, without touching anything."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.errors import ExitCode, InputError
from mig_manager.cli.kubectl.options import Context, Format, KubeconfigFile, Output, Selector
from mig_manager.errors import MigManagerError, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mig_manager.cli.kubectl.cluster import GpuNode
    from mig_manager.cli.kubectl.forecast import Forecast, NoForecast
    from mig_manager.cli.kubectl.meaning import Written
    from mig_manager.cluster.budgets import Budget
    from mig_manager.cluster.client import Api

_EXAMPLES = """\b
Examples:
  kubectl mig plan gpu-1 all-balanced
  kubectl mig plan gpu-1 gpu-2 training -o json
  kubectl mig plan -l pool=inference all-1g.10gb
  kubectl mig plan gpu-1 mixed --config-file layouts.yaml

\b
Exits with 0 where the layout fits all of these nodes, with 2 and the reason
where one of them cannot take it.
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("plan", epilog=_EXAMPLES, short_help="What a layout would change, and which pods it evicts.")(
        plan
    )


def plan(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[NODE]... LAYOUT", help="Names of Nodes, and the name of a layout at the end."
        ),
    ],
    selector: Selector = None,
    output: Output = Format.TEXT,
    config_file: Annotated[
        Path | None,
        typer.Option(
            "-f", "--config-file", metavar="FILE", help="Layouts from this file, instead of a ConfigMap."
        ),
    ] = None,
    config_map: Annotated[
        str | None,
        typer.Option(
            "--config-map",
            metavar="NAMESPACE/NAME",
            help="Layouts from this ConfigMap, instead of the one that the daemon of each node names.",
        ),
    ] = None,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Show what a layout would keep, destroy and create on nodes, and which pods would have to go.

    It is worked out from what the API tells; no node is asked, and nothing is touched. Which device of a type a pod
    has, only its kubelet knows, so some pods only may have to go. What holds evictions up is shown:
    PodDisruptionBudgets, pods without a controller, pods of DaemonSets.
    """
    *names, layout = words
    if not names and selector is None:
        raise InputError(
            f"name at least one Node, and the layout at the end (found only {layout!r}); or select Nodes by -l"
        )
    if config_file is not None and config_map is not None:
        raise InputError("give layouts by --config-file or by --config-map, not both")
    from mig_manager.cli.kubectl.cluster import connect, find_nodes, nobody

    with connect(kubeconfig, context) as api:
        nodes = find_nodes(api, names, selector)
        if not nodes:
            raise InputError(nobody(selector))
        written = _written(api, config_file, config_map)
        budgets, unread = _budgets(api)
        found = [_forecast(api, node, layout, written(node), budgets, unread) for node in nodes]
    _print(found, layout, output)
    if len(found) == 1 and not _fits(found[0]):
        raise found[0].error  # type: ignore[union-attr]
    if not all(map(_fits, found)):
        raise typer.Exit(ExitCode.BAD_INPUT)


def _written(api: Api, file: Path | None, config_map: str | None) -> Callable[[GpuNode], Written]:
    """What is written for a node: in what the user names, or else where its daemon says."""
    from mig_manager.cli.kubectl.meaning import Meanings, Written

    if file is None and config_map is None:
        return Meanings(api).written
    from mig_manager.cli.kubectl.layoutsource import layout_source

    source = layout_source(api, file, config_map)
    return lambda node: Written(source.book, source.words)


def _budgets(api: Api) -> tuple[Sequence[Budget], str]:
    """All budgets; or none, and why."""
    from mig_manager.cluster.budgets import find_budgets
    from mig_manager.cluster.refusal import ApiError

    try:
        return find_budgets(api), ""
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return (), f"PodDisruptionBudgets cannot be read, so that none is taken into account: {error.message}"


def _forecast(
    api: Api, node: GpuNode, layout: str, written: Written, budgets: Sequence[Budget], unread: str
) -> Forecast | NoForecast:
    from mig_manager.cli.kubectl.forecast import NoForecast, forecast
    from mig_manager.cli.kubectl.meaning import takes_no_layout
    from mig_manager.cli.kubectl.show import shown_node

    if written.book is None and node.takes_no_layout:
        # Its daemon refuses each name then, also those that the hardware offers.
        why = f"{node.name}: {takes_no_layout(written.words)}"
        return NoForecast(node.name, MigManagerError(Reason.INVALID_LAYOUT, why))
    remarks = [unread] if unread else []
    if node.in_a_run:
        remarks.append(
            f"A run is under way on {node.name}, or was broken off: its GPUs may be about to change."
        )
    try:
        shown = shown_node(api, node)
        known = layout in node.layouts
        return forecast(shown, layout, written, budgets, known_there=known, remarks=remarks)
    except (MigManagerError, InputError) as error:
        from mig_manager.cluster.refusal import ApiError

        if isinstance(error, ApiError):
            raise
        return NoForecast(node.name, error)


def _fits(one: Forecast | NoForecast) -> bool:
    from mig_manager.cli.kubectl.forecast import Forecast

    return isinstance(one, Forecast)


def _print(found: Sequence[Forecast | NoForecast], layout: str, output: Format) -> None:
    from mig_manager.cli.kubectl.forecast import Forecast, NoForecast
    from mig_manager.cli.kubectl.forecastwords import forecast_document, forecast_lines, forecast_table
    from mig_manager.cli.kubectl.wrapping import limit
    from mig_manager.cli.options import Listing
    from mig_manager.cli.output import Screen, write, write_listing

    if output is Format.NAME:
        write("".join(f"node/{one.node}\n" for one in found if isinstance(one, Forecast)))
        _complain(found)
        return
    if output in (Format.JSON, Format.YAML):
        documents = [forecast_document(one, layout) for one in found]
        write_listing({"layout": layout, "nodes": documents}, Listing(output))
        return
    from rich.text import Text

    screen = Screen()
    several = len(found) > 1
    if several:
        screen.lines([*forecast_table(found, limit(screen)), Text()])
    _complain(found)
    told: dict[str, list[str]] = {}
    for one in found:
        if isinstance(one, NoForecast):
            continue
        lines = list(forecast_lines(one, screen.look))
        alike = told.setdefault("\n".join(line.plain for line in lines), [])
        alike.append(one.node)
        if len(alike) == 1 or output is Format.WIDE:
            screen.lines([Text(one.node, "bold"), *lines, Text()])
    for first, *others in told.values():
        if others and output is not Format.WIDE:
            screen.lines([Text(f"{', '.join(others)}: the same as {first}")])
    sources = dict.fromkeys(one.layouts_from for one in found if isinstance(one, Forecast))
    screen.lines(Text(f"layouts: {words}", "dim") for words in sources)


def _complain(found: Sequence[Forecast | NoForecast]) -> None:
    """Of several nodes, which ones cannot take the layout, and why; of one alone the command's end tells that."""
    from mig_manager.cli.kubectl.forecast import NoForecast
    from mig_manager.cli.output import complain

    for one in found:
        if len(found) > 1 and isinstance(one, NoForecast):
            complain(f"{one.node}: {one.error}")
