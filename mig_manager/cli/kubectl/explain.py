"""`kubectl mig explain`: why a pod that wants a GPU or a MIG device is Pending."""

from __future__ import annotations

from typing import Annotated

import typer

from mig_manager.cli.errors import InputError
from mig_manager.cli.kubectl.options import Context, Format, KubeconfigFile, Namespace, Output

_EXAMPLES = """\b
Examples:
  kubectl mig explain pod/trainer -n ml
  kubectl mig explain trainer -o json
"""
_POD_WORDS = ("pod", "pods", "po")


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "explain", epilog=_EXAMPLES, short_help="Why a pod waits for a GPU, and what would serve it."
    )(explain)


def explain(
    target: Annotated[
        list[str], typer.Argument(metavar="pod/NAME", help="The pod; also: pod NAME, or NAME alone.")
    ],
    namespace: Namespace = None,
    output: Output = Format.TEXT,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Say why a pod that wants a GPU or a MIG device is Pending, and which node and layout would serve it.

    Touches nothing. What a layout would evict is told as far as the API shows it: which instance a pod holds is known
    to its node alone.
    """
    name = pod_name(target)
    from mig_manager.cli.kubectl.cluster import connect, namespace_of
    from mig_manager.cli.kubectl.explaining.diagnosis import diagnose
    from mig_manager.cli.kubectl.explaining.gather import read_scene
    from mig_manager.cli.kubectl.explaining.words import diagnosis_document, diagnosis_lines
    from mig_manager.cli.kubectl.wrapping import limit
    from mig_manager.cli.options import Listing
    from mig_manager.cli.output import Screen, write, write_listing

    with connect(kubeconfig, context) as api:
        scene = read_scene(api, namespace or namespace_of(kubeconfig, context), name)
    diagnosis = diagnose(scene)
    if output is Format.NAME:
        write("".join(f"node/{each.node}\n" for each in diagnosis.remedies))
    elif output in (Format.JSON, Format.YAML):
        write_listing(diagnosis_document(scene, diagnosis), Listing(output))
    else:
        screen = Screen()
        screen.lines(diagnosis_lines(scene, diagnosis, wide=output is Format.WIDE, width=limit(screen)))


def pod_name(words: list[str]) -> str:
    """The name of the pod that the words of a command line mean.

    Raises:
        InputError: they mean no pod, or more than one.
    """
    parts = [part for word in words for part in word.split("/", 1)]
    if len(parts) == 2 and parts[0] in _POD_WORDS and parts[1]:
        return parts[1]
    if len(parts) == 1 and parts[0]:
        return parts[0]
    said = " ".join(words)
    if len(parts) == 2 and parts[0] not in _POD_WORDS:
        example = f"pod/{parts[1] or 'NAME'}"
        raise InputError(
            f"{said}: only pods are explained, as in {example}; or {example} -n {parts[0]}, if that is its namespace"
        )
    raise InputError(f"{said}: one pod is explained at a time, as in pod/NAME")
