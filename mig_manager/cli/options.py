"""The options that several commands share; the names are those of nvidia-mig-parted where it has them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

LayoutFile = Annotated[
    Path | None,
    typer.Option(
        "-f",
        "--config-file",
        metavar="FILE",
        help="Layout file (version: v1). Without it, or for a name that it lacks, the layouts generated from "
        "this hardware serve.",
    ),
]
LayoutName = Annotated[
    str, typer.Option("-c", "--selected-config", metavar="LAYOUT", help="Name of the layout.")
]
Simulate = Annotated[
    str | None,
    typer.Option(
        "--simulate",
        metavar="GPUS",
        help="Work on simulated GPUs, such as 8xA100-SXM4-80GB or 4xH100-80GB-HBM3,1xA30.",
    ),
]
SimulateState = Annotated[
    Path | None,
    typer.Option(
        "--simulate-state",
        metavar="FILE",
        help="Keep the simulated GPUs in this file, so that the next command finds them as this one leaves "
        "them.",
    ),
]
DriverRoot = Annotated[
    Path | None,
    typer.Option(
        "--driver-root",
        metavar="DIR",
        envvar="DRIVER_ROOT_CTR_PATH",
        help="Where the NVIDIA driver is installed.",
    ),
]
GpuList = Annotated[
    str | None,
    typer.Option(
        "-i",
        "--gpu",
        metavar="GPUS",
        help="GPUs by index, UUID or PCI bus id, with commas between several; or all.",
    ),
]
ResetCommand = Annotated[
    str | None,
    typer.Option(
        "--reset-command",
        metavar="COMMAND",
        help="What resets GPUs; {gpus} stands for their UUIDs, {addresses} for their PCI addresses. Default: nvidia-smi"
        " -r -i {addresses}",
    ),
]


class Output(StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    JSON = "json"


class Listing(StrEnum):
    """How a command prints a list."""

    TEXT = "text"
    JSON = "json"
    YAML = "yaml"


ListingOption = Annotated[
    Listing, typer.Option("-o", "--output", "--output-format", help="A table for people, JSON, or YAML.")
]
