"""`kubectl mig web`: the fleet as a page in the browser of this machine."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from mig_manager.cli.errors import InputError
from mig_manager.cli.kubectl.options import Context, KubeconfigFile, Selector

_EXAMPLES = """\b
Examples:
  kubectl mig web
  kubectl mig web -l pool=training --port 8642
"""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("web", epilog=_EXAMPLES, short_help="Nodes, GPUs and runs as a page in your browser, live.")(
        web
    )


def web(
    selector: Selector = None,
    port: Annotated[
        int,
        typer.Option(
            "--port", metavar="PORT", min=0, max=65535, help="Port of the page; 0 takes a free one."
        ),
    ] = 0,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Serve a page with nodes, pictures of their GPUs, states and running reconfigurations, until Ctrl-C.

    The page changes nothing, follows the cluster live, and needs nothing from elsewhere. It is served to this machine
    only: on 127.0.0.1, with what your credentials may read.
    """
    from mig_manager.cli.kubectl.cluster import connect
    from mig_manager.cli.kubectl.webview.fleet import Fleet
    from mig_manager.cli.kubectl.webview.server import PageServer
    from mig_manager.cli.output import write

    ended = threading.Event()
    with connect(kubeconfig, context) as api, Fleet(api, selector) as fleet:
        try:
            server = PageServer(fleet, api.server, port)
        except OSError as error:
            raise InputError(
                f"--port {port}: {error.strerror}; without --port a free one is taken"
            ) from error
        with server:
            for each in (signal.SIGINT, signal.SIGTERM):
                signal.signal(each, lambda *_: ended.set())
            write(f"{server.url}\nCtrl-C ends it.\n")
            ended.wait()
