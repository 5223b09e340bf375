"""A control plane that is another program, reached by a kubeconfig: kube-apiserver with its controllers."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from pathlib import Path

from mig_manager.cluster.client import Api
from mig_manager.simulation.accounts import write_account_kubeconfig
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.control.plane import Access, NotSimulatedError
from mig_manager.simulation.objects import Change, Object, Resource
from mig_manager.simulation.remote import RemoteStore
from mig_manager.simulation.resources import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    CONFIGMAPS,
    CONTROLLER_REVISIONS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    REPLICA_SETS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    RESOURCE_SLICES,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
)
from mig_manager.simulation.store import ObjectExistsError

_MADE = "simulation.mig-manager/made"
"""Label of the namespaces that a simulation has made, and may empty."""
_PROVIDER = "simulated://"
_CONTENT = (
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    JOBS,
    PODS,
    RESOURCE_CLAIMS,
    RESOURCE_CLAIM_TEMPLATES,
    POD_DISRUPTION_BUDGETS,
    CONFIGMAPS,
    LEASES,
    CONTROLLER_REVISIONS,
    EVENTS,
    ROLE_BINDINGS,
    ROLES,
)
"""What is taken out of those namespaces at the beginning and at the end, controllers before what they make."""
_ADVICE = "a simulation needs a control plane of its own"
_CERTIFICATES = "kube-root-ca.crt"
"""A ConfigMap that a controller puts into every namespace."""
_PATIENCE_S = 30.0
_PAUSE_S = 0.1


class OccupiedError(Exception):
    """The cluster has a Node or a namespace of a name that is needed here, and that nobody here has made."""


class ForeignControlPlane:
    """Nodes act on it over HTTP, as an administrator. Nothing else may run in the cluster: it has no other node.

    What an earlier simulation has left behind is removed at the start.
    """

    def __init__(self, kubeconfig: Path, access: Access) -> None:
        """`kubeconfig` is an administrator's. Raises ApiError if it cannot be used."""
        self._kubeconfig = kubeconfig
        self._access = access
        self._api = Api.connect(kubeconfig)
        self.store = RemoteStore(self._api)
        self._namespaces: list[str] = []

    @property
    def server(self) -> ApiServer:
        """There is none of ours."""
        raise NotSimulatedError("looks into the simulated API server")

    def start(self) -> None:
        """Make room, and begin to follow the cluster. OccupiedError if it is somebody else's."""
        self._remove_node()
        shutil.copyfile(self._kubeconfig, self._access.admin)
        self.make_namespace(self._access.namespace, self._access.account)
        if self._access.grants is None:
            shutil.copyfile(self._kubeconfig, self._access.daemon)
        else:
            for _, granted in self._access.named():
                if granted.namespace:
                    self.make_namespace(granted.namespace)
            self._remove_grants()
            self._access.give(self.store)
            account = (self._access.namespace, self._access.account)
            write_account_kubeconfig(self._api, self._kubeconfig, self._access.daemon, *account)
        self.store.start()

    def make_namespace(self, name: str, *accounts: str) -> None:
        """Make a namespace with these service accounts, or empty the one of an earlier run."""
        if name not in self._namespaces:
            with suppress(ObjectExistsError):
                self.store.create(NAMESPACES, {"metadata": {"name": name, "labels": {_MADE: "true"}}})
            held = self.store.get(NAMESPACES, None, name) or {"metadata": {}}
            if _MADE not in (held["metadata"].get("labels") or {}) and name != "default":
                raise OccupiedError(f"namespace {name} is there already; {_ADVICE}")
            self._namespaces.append(name)
            if name != "default":
                self._clear(name)
        for account in ("default", *accounts):
            with suppress(ObjectExistsError):
                self.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": account, "namespace": name}})

    def changed(self, change: Change) -> None:
        """Its controllers follow by themselves."""

    def stop(self) -> None:
        """Follow the cluster no more, and remove what was made in it; empty namespaces stay."""
        self.store.stop()
        for name in self._namespaces:
            if name != "default":
                self._clear(name)
        self._remove_grants()
        self._remove_node()
        self._api.close()

    def _clear(self, namespace: str) -> None:
        for resource in _CONTENT:
            self._empty(resource, namespace)

    def _empty(self, resource: Resource, namespace: str) -> None:
        """Delete all objects of a kind, and wait until they are gone."""
        end = time.monotonic() + _PATIENCE_S
        while left := [
            each["metadata"]["name"]
            for each in self.store.list(resource, namespace)[0]
            if each["metadata"]["name"] != _CERTIFICATES
        ]:
            if time.monotonic() > end:
                raise TimeoutError(f"{resource.plural} in {namespace} do not go: {', '.join(left)}")
            for name in left:
                self.store.update(resource, namespace, name, _without_finalizers)
                self.store.delete(resource, namespace, name, grace_seconds=0)
            time.sleep(_PAUSE_S if resource is PODS else 0)

    def _remove_grants(self) -> None:
        for name, granted in self._access.named():
            kinds = (ROLE_BINDINGS, ROLES) if granted.namespace else (CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES)
            for resource in kinds:
                self.store.delete(resource, granted.namespace or None, name)

    def _remove_node(self) -> None:
        name = self._access.node
        node = self.store.get(NODES, None, name)
        if node is not None and not node["spec"].get("providerID", "").startswith(_PROVIDER):
            raise OccupiedError(f"Node {name} is there already; {_ADVICE}")
        self.store.delete(NODES, None, name)
        self.store.delete(LEASES, "kube-node-lease", name)
        for each in self.store.list(RESOURCE_SLICES)[0]:
            if each["spec"].get("nodeName") == name:
                self.store.delete(RESOURCE_SLICES, None, each["metadata"]["name"])
        for each in self.store.list(EVENTS, "default")[0]:
            if each["involvedObject"].get("name") == name:
                self.store.delete(EVENTS, "default", each["metadata"]["name"])


def _without_finalizers(obj: Object) -> Object | None:
    if not obj["metadata"].get("finalizers"):
        return None
    del obj["metadata"]["finalizers"]
    return obj
