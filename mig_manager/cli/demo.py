"""`mig-manager demo`: the product at work, on a simulated node."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.errors import ExitCode, InputError

if TYPE_CHECKING:
    from mig_manager.planning.catalogue import GpuModel

_EXAMPLES = """\b
Examples:
  mig-manager demo
  mig-manager demo --gpus 4xH100-80GB-HBM3,1xA30
  mig-manager demo --serve                     (a cluster for your own kubectl)
  mig-manager demo --serve --port 8001 --directory ./cluster
"""
_OURS = ("gpus.json", "kubeconfig", "daemon.log", "host", "pod-resources")
"""What the names of the files that a demo leaves begin with."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("demo", epilog=_EXAMPLES, short_help="Play a story on a simulated cluster, or keep it up.")(
        demo
    )


def demo(
    gpus: Annotated[
        str, typer.Option("--gpus", metavar="GPUS", help="GPUs of the simulated node.")
    ] = "2xA100-SXM4-80GB",
    serve: Annotated[
        bool, typer.Option("--serve", help="Keep cluster and daemon up for kubectl, until Ctrl-C.")
    ] = False,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port of the API server; 0 takes a free one."
        ),
    ] = 0,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--directory",
            metavar="DIR",
            help="Keep kubeconfig, state and log of the daemon here; otherwise they go when the demo ends.",
        ),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Let pods start, and GPUs change, in next to no time.")
    ] = False,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="With --serve: do not show the log of the daemon.")
    ] = False,
) -> None:
    """Play a short story on a simulated cluster with the real daemon, or keep that cluster up.

    The story takes half a minute and ends with 1 if anything in it did not end as it should.
    """
    if quiet and not serve:
        raise typer.BadParameter("goes with --serve; the story shows no log", param_hint="--quiet")
    models = _models(gpus)
    try:
        from mig_manager.cli.play.serve import serve as serve_cluster
        from mig_manager.cli.play.stage import DemoError, Stage, ended_by_signals
        from mig_manager.cli.play.story import Story
        from mig_manager.cli.play.telling import Teller
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise InputError(
            "the simulated cluster needs aiohttp, which is not installed: pip install 'mig-manager[simulation]'"
        ) from error
    from mig_manager.cli.choice import all_layouts
    from mig_manager.cli.hardware import hardware
    from mig_manager.cli.output import complain
    from mig_manager.layouts.schema import parse_layouts
    from mig_manager.simulation.delays import Delays
    from mig_manager.simulation.world import CONFIG_KEY

    delays = Delays.fast() if fast else Delays.demo()
    teller = Teller()
    log: SimpleQueue[str] = SimpleQueue()
    try:
        with ended_by_signals(), _place(directory) as place, ExitStack() as stack:
            with teller.busy("a cluster starts"):
                stage = stack.enter_context(Stage(place, gpus, delays=delays, port=port, hear=log.put))
                stage.wait_ready()
                state = stage.cluster.gpus.path
                worker = stack.enter_context(hardware(simulate=None, simulate_state=state)).worker
                inventory = worker.inventory()
            if serve:
                layouts = all_layouts(parse_layouts(stage.cluster.layouts, file=CONFIG_KEY), inventory)
                worker.close()
                serve_cluster(stage, teller, models, layouts.layouts, log, quiet=quiet)
            else:
                Story(stage, teller, worker, models).play()
    except DemoError as error:
        complain(f"error: {error}")
        raise typer.Exit(ExitCode.DIFFERS) from error
    except KeyboardInterrupt:
        if not serve:
            raise
        teller.text("Ended; daemon and cluster are gone.")


def _models(gpus: str) -> tuple[GpuModel, ...]:
    """The GPUs of the node; at least one of them must have MIG."""
    from mig_manager.cli.hardware import gpus_of

    models = gpus_of("--gpus", gpus)
    if all(model.geometry is None for model in models):
        raise InputError(
            f"--gpus {gpus}: none of these GPUs has MIG, so there is nothing to show; add one that has, such as "
            "A100-SXM4-80GB, H100-80GB-HBM3 or A30"
        )
    return models


@contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    """Where the files of the demo lie: in the folder that the user names, or in one that goes at the end."""
    if directory is None:
        with tempfile.TemporaryDirectory(prefix="mig-manager-demo-") as name:
            yield Path(name)
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        others = sorted(entry.name for entry in directory.iterdir() if not entry.name.startswith(_OURS))
    except OSError as error:
        raise InputError(f"--directory {directory}: {error.strerror or error}") from error
    if not os.access(directory, os.W_OK):
        raise InputError(f"--directory {directory}: cannot be written")
    if others:
        raise InputError(
            f"--directory {directory}: holds {others[0]}, which is not from a demo; name an empty folder"
        )
    yield directory.absolute()
