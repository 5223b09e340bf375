"""Service accounts with few rights, on an API server real or simulated."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mig_manager.cluster.client import Api, object_path
from mig_manager.simulation.api.authorization import User
from tests.cluster.cluster import Cluster

RBAC = "rbac.authorization.k8s.io/v1"
NAME = "tested"


@dataclass(frozen=True, slots=True)
class Account:
    """A service account in the namespace of a test."""

    api: Api
    """A connection with its token."""
    cluster: Cluster
    undo: ExitStack

    def may(self, *verbs: str, resource: str, name: str = "", everywhere: bool = False) -> None:
        """Grant verbs in the namespace of the test, or in the whole cluster."""
        kind, plural = ("ClusterRole", "clusterrole") if everywhere else ("Role", "role")
        rule: dict[str, Any] = {"apiGroups": [""], "resources": [resource], "verbs": list(verbs)}
        if name:
            rule["resourceNames"] = [name]
        meta = {"metadata": {"generateName": f"{self.cluster.namespace}-"}}
        role = self._create(f"{plural}s", {**meta, "rules": [rule]}, everywhere)
        subject = {"kind": "ServiceAccount", "name": NAME, "namespace": self.cluster.namespace}
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role}
        self._create(f"{plural}bindings", {**meta, "roleRef": reference, "subjects": [subject]}, everywhere)

    def _create(self, plural: str, body: dict[str, Any], everywhere: bool) -> str:
        made = self.cluster.create(plural, body, group=RBAC, namespaced=not everywhere)
        name: str = made["metadata"]["name"]
        if everywhere:
            self.undo.callback(self.cluster.api.delete, object_path(plural, name, group=RBAC))
        return name


@contextmanager
def new_account(
    cluster: Cluster, kubeconfig: Path, directory: Path, tokens: MutableMapping[str, User] | None
) -> Iterator[Account]:
    """`tokens` are those that a simulated API server knows; None: a real one is asked for a token."""
    if tokens is None:
        cluster.create("serviceaccounts", {"metadata": {"name": NAME}})
        answer = cluster.api.create(f"{cluster.path('serviceaccounts', NAME)}/token", {"spec": {}})
        token = answer["status"]["token"]
    else:
        token = f"token-of-{cluster.namespace}"
        tokens[token] = User.service_account(cluster.namespace, NAME)
    config = yaml.safe_load(kubeconfig.read_text())
    for user in config["users"]:
        user["user"] = {"token": token}
    path = directory / "kubeconfig-of-account"
    path.write_text(yaml.safe_dump(config))
    with ExitStack() as undo, Api.connect(path) as api:
        yield Account(api, cluster, undo)
