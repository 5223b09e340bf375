"""The options that the commands share; the names are those of kubectl."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

KubeconfigFile = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", help="Credentials, instead of $KUBECONFIG or ~/.kube/config."
    ),
]
Context = Annotated[
    str | None, typer.Option("--context", metavar="NAME", help="The context of the kubeconfig to use.")
]
Namespace = Annotated[
    str | None,
    typer.Option("-n", "--namespace", metavar="NAME", help="The namespace, instead of that of the context."),
]
NodeNames = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NODE]...", help="Names of Nodes; all with GPUs where none is given."),
]
Selector = Annotated[
    str | None,
    typer.Option(
        "-l", "--selector", metavar="SELECTOR", help="Nodes by labels, such as pool=training,tier!=dev."
    ),
]


class Format(StrEnum):
    """How a command prints its result."""

    TEXT = "text"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


Output = Annotated[
    Format,
    typer.Option("-o", "--output", help="Text, more of it, JSON, YAML, or names that kubectl takes."),
]
