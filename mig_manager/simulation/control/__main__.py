"""The simulated control plane by itself, without a node, for clients in other processes.

python -m mig_manager.simulation.control KUBECONFIG [--port PORT]

Writes an administrator's kubeconfig, and serves until SIGINT or SIGTERM.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from mig_manager.simulation.api.authorization import ADMIN, stored_rbac
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.control.controllers import Controllers
from mig_manager.simulation.loop import Loop
from mig_manager.simulation.store import MemoryStore

_TOKEN = "administrator"


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m mig_manager.simulation.control")
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--port", type=int, default=0, help="0, the default, takes a free one")
    options = parser.parse_args(arguments)
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    store = MemoryStore()
    loop = Loop("control-plane")
    controllers = Controllers(store, loop, delay=0.0)
    store.subscribe(lambda change: loop.post(lambda: controllers.changed(change)))
    loop.start()
    with ApiServer(
        store, port=options.port, tokens={_TOKEN: ADMIN}, anonymous=None, authorizer=stored_rbac(store)
    ) as server:
        written = options.kubeconfig.with_suffix(".new")
        server.write_kubeconfig(written, token=_TOKEN)
        written.replace(options.kubeconfig)
        signal.sigwait(signals)
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
