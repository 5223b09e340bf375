"""Two Nodes, a pod on each, and the daemon's tokens, on an API server that enforces the shipped policy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from mig_manager.cluster.client import Api, collection_path, object_path
from mig_manager.cluster.refusal import ApiError
from mig_manager.simulation.api.authorization import ADMIN, User
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.store import MemoryStore
from mig_manager.simulation.world import ACCOUNT, NAMESPACE
from tests.shipped import DEPLOY, documents, shipped_policy

REAL = "MIG_MANAGER_E2E_KUBECONFIG"
"""Environment variable: the kubeconfig of a real API server to be used instead of the simulated one."""
RBAC = "rbac.authorization.k8s.io/v1"
ADMISSION = "admissionregistration.k8s.io/v1"
COORDINATION = "coordination.k8s.io/v1"
_PLURALS = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
OWN, OTHER = "mig-test-own", "mig-test-other"
PAUSED = "paused-for-mig-change"
TAINTS = [
    {"key": "mig-manager/not-ready", "effect": "NoSchedule"},
    {"key": "theirs", "value": "x", "effect": "NoSchedule"},
]
NODE: dict[str, Any] = {
    "metadata": {
        "labels": {
            "nvidia.com/mig.config": "small",
            "nvidia.com/gpu.deploy.dcgm": "true",
            "nvidia.com/gpu.deploy.device-plugin": PAUSED,
            "theirs": "x",
        },
        "annotations": {"mig-manager/status": "{}", "theirs": "x"},
    },
    "spec": {"taints": TAINTS},
    "status": {
        "capacity": {"cpu": "4", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "0"},
        "allocatable": {"cpu": "4", "nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "0"},
    },
}


@dataclass(frozen=True, slots=True)
class Bed:
    """The API server as the administrator, the daemon on node OWN, and a stolen token that is no pod's see it."""

    admin: Api
    daemon: Api
    nobody: Api

    def renew(self) -> None:
        """Nodes, pods, Leases and Events as they were at the beginning."""
        for name in (OWN, OTHER):
            for path in (node(name), pod(name), lease(name), lease("leader"), event(name)):
                with suppress(ApiError):
                    self.admin.delete(path, {"gracePeriodSeconds": 0})
            body = {**NODE, "metadata": {**NODE["metadata"], "name": name}}
            self.admin.create(collection_path("nodes"), body)
            self.admin.create(collection_path("pods", namespace=NAMESPACE), pod_on(name))
            self.admin.create(leases(), lease_of(name))
            self.admin.create(events(), event_of(name, "Node", name, name=name))
        self.admin.create(leases(), {"metadata": {"name": "leader"}, "spec": {"holderIdentity": OWN}})


def node(name: str, part: str = "") -> str:
    return f"/api/v1/nodes/{name}{part}"


def pod(name: str) -> str:
    return object_path("pods", name, namespace=NAMESPACE)


def leases(namespace: str = NAMESPACE) -> str:
    return collection_path("leases", namespace=namespace, group=COORDINATION)


def lease(name: str) -> str:
    return object_path("leases", name, namespace=NAMESPACE, group=COORDINATION)


def events(namespace: str = "default") -> str:
    return collection_path("events", namespace=namespace)


def event(name: str) -> str:
    return object_path("events", name, namespace="default")


def event_of(host: str, kind: str, about: str, **meta: str) -> dict[str, Any]:
    """An Event that the daemon on `host` writes."""
    return {
        "metadata": meta or {"generateName": "mig-test-"},
        "involvedObject": {"apiVersion": "v1", "kind": kind, "name": about, "uid": about},
        "source": {"component": "mig-manager", "host": host},
        "reason": "Applied",
        "message": "small",
        "type": "Normal",
        "count": 1,
    }


def pod_on(name: str) -> dict[str, Any]:
    spec = {
        "nodeName": name,
        "serviceAccountName": ACCOUNT,
        "containers": [{"name": "main", "image": "none"}],
    }
    return {"metadata": {"name": name}, "spec": {**spec, "tolerations": [{"operator": "Exists"}]}}


def lease_of(holder: str, name: str = "") -> dict[str, Any]:
    meta = {"name": name or holder, "labels": {"mig-manager/lease": "slot", "mig-manager/pool": ""}}
    return {"metadata": meta, "spec": {"holderIdentity": holder, "leaseDurationSeconds": 60}}


@contextmanager
def policy_bed(directory: Path) -> Iterator[Bed]:
    """Kubeconfigs go into the directory."""
    with ExitStack() as stack:
        real = os.environ.get(REAL)
        yield stack.enter_context(_real(Path(real), directory) if real else _simulated(directory))


@contextmanager
def _simulated(directory: Path) -> Iterator[Bed]:
    accounts = {
        "admin": ADMIN,
        "daemon": User.service_account(NAMESPACE, ACCOUNT, node=OWN),
        "nobody": User.service_account(NAMESPACE, ACCOUNT),
    }
    with ExitStack() as stack:
        server = stack.enter_context(ApiServer(MemoryStore(), tokens=accounts, admit=shipped_policy()))
        connected = []
        for name in accounts:
            server.write_kubeconfig(directory / name, token=name)
            connected.append(stack.enter_context(Api.connect(directory / name)))
        admin = connected[0]
        admin.create(collection_path("namespaces"), {"metadata": {"name": NAMESPACE}})
        yield Bed(*connected)


@contextmanager
def _real(kubeconfig: Path, directory: Path) -> Iterator[Bed]:
    """The account may do anything by RBAC, so that only the policy can refuse."""
    with ExitStack() as stack:
        admin = stack.enter_context(Api.connect(kubeconfig))

        def made(path: str, body: dict[str, Any]) -> dict[str, Any]:
            created = admin.create(path, body)
            stack.callback(_forget, admin, f"{path}/{created['metadata']['name']}")
            return created

        made(collection_path("namespaces"), {"metadata": {"name": NAMESPACE}})
        account = collection_path("serviceaccounts", namespace=NAMESPACE)
        made(account, {"metadata": {"name": ACCOUNT}})
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
        subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
        binding = {"metadata": {"name": "mig-test"}, "roleRef": role, "subjects": [subject]}
        made(collection_path("clusterrolebindings", group=RBAC), binding)
        for each in documents(DEPLOY / "policy" / "policy.yaml", DEPLOY / "policy" / "binding.yaml"):
            made(collection_path(_PLURALS[each["kind"]], group=ADMISSION), each)
        made(collection_path("nodes"), {"metadata": {"name": OWN}})
        held = made(
            collection_path("pods", namespace=NAMESPACE), {**pod_on(OWN), "metadata": {"name": "daemon"}}
        )
        bound = {"apiVersion": "v1", "kind": "Pod", "name": "daemon", "uid": held["metadata"]["uid"]}
        connected = [
            stack.enter_context(
                Api.connect(_kubeconfig(kubeconfig, directory / name, _token(admin, account, spec)))
            )
            for name, spec in (("daemon", {"boundObjectRef": bound}), ("nobody", {}))
        ]
        _wait_for_policy(connected[1])
        yield Bed(admin, *connected)


def _wait_for_policy(nobody: Api) -> None:
    """An API server takes notice of a new policy after a moment; until then it lets this pass."""
    retrying = Retrying(
        stop=stop_after_delay(30), wait=wait_fixed(0.5), retry=retry_if_result(lambda refused: not refused)
    )
    retrying(_refused, nobody)


def _refused(nobody: Api) -> bool:
    try:
        nobody.patch(node(OWN), {"metadata": {"annotations": {"mig-manager/status": "{}"}}})
    except ApiError:
        return True
    return False


def _forget(admin: Api, path: str) -> None:
    with suppress(ApiError):
        admin.delete(path, {"gracePeriodSeconds": 0})


def _token(admin: Api, account: str, spec: dict[str, Any]) -> str:
    answer = admin.create(f"{account}/{ACCOUNT}/token", {"spec": spec})
    return str(answer["status"]["token"])


def _kubeconfig(admin: Path, path: Path, token: str) -> Path:
    """The administrator's, with another token for a user."""
    config = yaml.safe_load(admin.read_text())
    config["users"] = [{"name": each["name"], "user": {"token": token}} for each in config["users"]]
    path.write_text(yaml.safe_dump(config))
    return path
