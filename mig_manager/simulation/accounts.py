"""Kubeconfigs of service accounts, with tokens that the API server gives out."""

from __future__ import annotations

from pathlib import Path

import yaml

from mig_manager.cluster.client import Api, object_path
from mig_manager.simulation.objects import Object


def write_account_kubeconfig(
    api: Api, admin: Path, path: Path, namespace: str, account: str, *, pod: Object | None = None
) -> None:
    """Write to `path` what `admin` holds, with a token of the account instead; bound to a pod, if one is given."""
    place = object_path("serviceaccounts", account, namespace=namespace)
    spec: Object = {}
    if pod is not None:
        meta = pod["metadata"]
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
    token = api.create(f"{place}/token", {"spec": spec})["status"]["token"]
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path.write_text(yaml.safe_dump(config))
