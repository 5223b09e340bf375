"""`mig-manager validate`: are layout files right, and do they fit the nodes of a fleet? For CI and pre-commit."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.errors import ExitCode, InputError

if TYPE_CHECKING:
    from mig_manager.cli.validation.checks import Fleet, NodeKind, Verdict

_EXAMPLES = """\b
Examples:
  mig-manager validate layouts.yaml
  mig-manager validate layouts.yaml --gpus 8xA100-SXM4-80GB --gpus 2xA30
  kubectl get configmap -n mig-manager -o yaml | mig-manager validate -
  helm template deploy/helm/mig-manager -f values.yaml | mig-manager validate - --format sarif
"""


class Format(StrEnum):
    """How the findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


class Strategy(StrEnum):
    """The MIG strategies of NVIDIA's device plugin."""

    NONE = "none"
    SINGLE = "single"
    MIXED = "mixed"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("validate", epilog=_EXAMPLES)(validate)


def validate(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Layout files, or Kubernetes manifests with ConfigMaps that hold some; - is stdin.",
        ),
    ],
    gpus: Annotated[
        list[str] | None,
        typer.Option(
            "--gpus",
            metavar="GPUS",
            help="GPUs of a kind of node, such as 8xA100-SXM4-80GB or 4xH100-80GB-HBM3,1xA30. Every layout is held "
            "against it. Once for each kind.",
        ),
    ] = None,
    selected_config: Annotated[
        list[str] | None,
        typer.Option(
            "-c",
            "--selected-config",
            metavar="LAYOUT",
            help="With --gpus: hold only this layout against them. May be given several times.",
        ),
    ] = None,
    output: Annotated[
        Format,
        typer.Option(
            "--format", "-o", "--output", help="Text for people, JSON, or SARIF 2.1.0 for code scanning."
        ),
    ] = Format.TEXT,
    strategy: Annotated[
        Strategy | None,
        typer.Option(
            "--strategy", help="With --gpus: the device plugin's MIG strategy there, which has to suit."
        ),
    ] = None,
    docs_url: Annotated[
        str | None,
        typer.Option(
            "--docs-url",
            metavar="URL",
            help="Where these docs are published as a site; SARIF rules then link to what to do.",
        ),
    ] = None,
) -> None:
    """Check layout files: are they right, and do they fit?

    Exits with 0 where there is no error, else with 2. Warnings are no errors.
    """
    for option, value in (("--strategy", strategy), ("--selected-config", selected_config)):
        if value and not gpus:
            raise typer.BadParameter("goes with --gpus", param_hint=option)
    if docs_url is not None and not docs_url.startswith(("https://", "http://")):
        raise typer.BadParameter(
            f"found {docs_url!r}; allowed is a URL such as https://docs.example.com/mig-manager",
            param_hint="--docs-url",
        )
    from mig_manager.cli.output import Screen, write_json
    from mig_manager.cli.validation.checks import Fleet
    from mig_manager.cli.validation.report import json_document, text_lines
    from mig_manager.cli.validation.sarif import sarif_document

    kinds = tuple(_kind(text) for text in gpus or ())
    only = frozenset(selected_config or ())
    verdict = _check(files, Fleet(kinds, strategy, only))
    _require(only, verdict)
    if output is Format.JSON:
        write_json(json_document(verdict))
    elif output is Format.SARIF:
        write_json(sarif_document(verdict, docs_url))
    else:
        Screen().lines(text_lines(verdict))
    if not verdict.valid:
        raise typer.Exit(ExitCode.BAD_INPUT)


def _check(files: list[Path], fleet: Fleet) -> Verdict:
    from mig_manager.cli.validation.checks import Verdict, check_file, unreadable
    from mig_manager.layouts.findings import LayoutFileError

    verdicts = []
    for path in dict.fromkeys(files):
        try:
            text, file = _read(path)
        except LayoutFileError as error:
            verdicts.append(unreadable(str(path), error))
        else:
            verdicts.append(check_file(text, file, fleet))
    return Verdict(
        tuple(file for verdict in verdicts for file in verdict.files),
        tuple(remark for verdict in verdicts for remark in verdict.remarks),
    )


def _require(names: frozenset[str], verdict: Verdict) -> None:
    """That the files have these layouts, as far as they could be read."""
    from mig_manager.layouts.findings import clipped, hint
    from mig_manager.layouts.suggest import nearest

    there = [layout.name for file in verdict.files for layout in file.layouts]
    for name in sorted(names.difference(there)):
        if verdict.valid:
            raise InputError(
                f"--selected-config {clipped(name)}: there is no such layout"
                f"{hint(map(clipped, nearest(name, there))) or '; there are: ' + ', '.join(map(clipped, there))}"
            )


def _read(path: Path) -> tuple[str, str]:
    if path == Path("-"):
        from mig_manager.cli.fields import read_text as read_stdin

        return read_stdin(path)
    from mig_manager.layouts.yamltext import read_text

    return read_text(path), str(path)


def _kind(text: str) -> NodeKind:
    from itertools import groupby

    from mig_manager.cli.hardware import gpus_of
    from mig_manager.cli.validation.checks import NodeKind

    models = gpus_of("--gpus", text)
    parts = [(title, len(list(alike))) for title, alike in groupby(model.title for model in models)]
    return NodeKind(",".join(f"{number}x{title}" for title, number in parts), models)
