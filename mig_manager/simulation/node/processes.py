"""Containers whose command is a process of this machine."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from mig_manager.cluster.client import Api
from mig_manager.simulation.accounts import write_account_kubeconfig
from mig_manager.simulation.node.containers import Run

_MOST_SAID = 4096
"""Characters; what Kubernetes takes for a termination message."""


class RealProcess:
    """Runs a program with the container's arguments and variables, as the pod's service account.

    Its output stands in the container's status once it has ended.
    """

    def __init__(self, program: Sequence[str], admin: Path) -> None:
        """`program`: what stands here for the first word of the container's command; `admin`: a kubeconfig."""
        self._program = program
        self._admin = admin
        self._process: subprocess.Popen[str] | None = None
        self._stopped = threading.Event()

    def start(self, run: Run) -> None:
        """Begin; the container ends with the process."""
        run.ready()
        threading.Thread(target=self._follow, args=(run,), name=run.name, daemon=True).start()

    def stop(self) -> None:
        """Tell the process to end, if it has not."""
        self._stopped.set()
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()

    def _follow(self, run: Run) -> None:
        meta = run.pod["metadata"]
        kubeconfig = self._admin.with_name(f"kubeconfig-of-{meta['uid']}")
        account = run.pod["spec"]["serviceAccountName"]
        with Api.connect(self._admin) as api:
            write_account_kubeconfig(api, self._admin, kubeconfig, meta["namespace"], account, pod=run.pod)
        environment = {**os.environ, **run.environment, "KUBECONFIG": str(kubeconfig)}
        with subprocess.Popen(
            [*self._program, *run.arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as self._process:
            if self._stopped.is_set():
                self._process.terminate()
            said, _ = self._process.communicate()
        status = self._process.returncode
        run.services.loop.post(lambda: run.exit(status, said[-_MOST_SAID:]))
