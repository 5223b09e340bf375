"""What a table says of a node, cell by cell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.text import Text

from mig_manager.cli.kubectl.standing import Standing, Use
from mig_manager.daemon.status import State

NONE = "-"
_STYLES = {
    State.SUCCESS: "green",
    State.FAILED: "bold red",
    State.PENDING: "yellow",
    State.REBOOTING: "magenta",
}


def aligned(cells: Sequence[str], widths: Sequence[int], gap: str, coloured: int, style: str) -> Text:
    """Cells of a row, padded, with the gap behind each; the one at `coloured` has the style."""
    line = Text()
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        line.append(f"{cell:<{width}}", style if number == coloured else "")
        line.append(gap)
    return line


def models_in_words(standing: Standing) -> str:
    """`8 x A100-SXM4-80GB`: GPUs by model, without their brand, as NVML or as feature discovery writes it."""
    models = standing.models.items()
    return (
        ", ".join(f"{count} x {model.removeprefix('NVIDIA').lstrip(' -')}" for model, count in models) or NONE
    )


def used_in_words(resources: Mapping[str, Use]) -> str:
    """`mig-1g.10gb 3/14, gpu 0/1`: used and allocatable, without the `nvidia.com/` before each."""
    words = (
        f"{name.removeprefix('nvidia.com/')} {'?' if use.used is None else use.used}/{use.allocatable}"
        for name, use in resources.items()
    )
    return ", ".join(words) or NONE


def layout_in_words(standing: Standing) -> str:
    """What the label asks for, and what mig-manager speaks of where that is another."""
    wanted = standing.node.wanted
    says = standing.said.layout if standing.said is not None else wanted
    if says == wanted:
        return wanted or NONE
    return f"{wanted or 'none'} (says {says})"


def phase_in_words(standing: Standing) -> str:
    """Where a run is, or has failed."""
    said = standing.said
    return NONE if said is None or said.state is State.SUCCESS else str(said.phase)


def progress_in_words(standing: Standing) -> str:
    """How far a run is; empty where there is none, or nothing to count."""
    return standing.progress if phase_in_words(standing) != NONE else ""


def state_style(standing: Standing) -> str:
    """How the state is coloured."""
    return next((style for state, style in _STYLES.items() if state == standing.state), "")
