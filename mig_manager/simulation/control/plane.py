"""What is beside the nodes of a cluster: API server, controllers, scheduler; ours, or another program's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mig_manager.simulation.api.admission import Admit
from mig_manager.simulation.api.authorization import ADMIN, User, stored_rbac
from mig_manager.simulation.api.grants import Grant, grant
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.control.controllers import Controllers
from mig_manager.simulation.loop import Loop
from mig_manager.simulation.objects import Change, Store
from mig_manager.simulation.resources import NAMESPACES, SERVICE_ACCOUNTS
from mig_manager.simulation.store import MemoryStore

_ADMIN_TOKEN = "simulation"
_DAEMON_TOKEN = "daemon"


@dataclass(frozen=True, slots=True)
class Access:
    """Who uses the cluster: an administrator, and the daemon by its service account."""

    admin: Path
    """The kubeconfig to write for the administrator."""
    daemon: Path
    """The kubeconfig to write for the daemon."""
    namespace: str
    account: str
    """The daemon's service account in that namespace."""
    node: str
    """The node that the daemon runs on."""
    grants: Sequence[Grant] | None
    """What the account may do; None: everything."""

    def give(self, store: Store) -> None:
        """Bind the account to what it may do."""
        for name, granted in self.named():
            grant(store, granted, name, self.namespace, self.account)

    def named(self) -> list[tuple[str, Grant]]:
        """The grants, with the names of their Roles."""
        return [(f"{self.account}-{number}", each) for number, each in enumerate(self.grants or ())]


class NotSimulatedError(Exception):
    """Something of the simulated API server is wanted where the control plane is another program."""


class ControlPlane(Protocol):
    """Runs from `start` to `stop`."""

    @property
    def store(self) -> Store:
        """The objects of the cluster."""
        ...

    @property
    def server(self) -> ApiServer:
        """The simulated API server; NotSimulatedError where there is none."""
        ...

    def start(self) -> None:
        """Begin to serve, and write the kubeconfigs."""
        ...

    def make_namespace(self, name: str, *accounts: str) -> None:
        """Make a namespace with these service accounts."""
        ...

    def changed(self, change: Change) -> None:
        """Something changed in the store. In the cluster's loop."""
        ...

    def stop(self) -> None:
        """End; leaves nothing behind."""
        ...


class OwnControlPlane:
    """The simulation's: the store is in this process, and the nodes act on it directly."""

    def __init__(
        self, access: Access, loop: Loop, *, port: int = 0, delay: float = 0.0, admit: Admit | None = None
    ) -> None:
        """`port` of the API server, 0 for a free one; `delay`: what each controller takes before it acts."""
        self.store = MemoryStore()
        self._access = access
        self._controllers = Controllers(self.store, loop, delay=delay)
        if access.grants is None:
            self.server = ApiServer(self.store, port=port, admit=admit)
        else:
            account = User.service_account(access.namespace, access.account, node=access.node)
            tokens = {_ADMIN_TOKEN: ADMIN, _DAEMON_TOKEN: account}
            rbac = stored_rbac(self.store)
            self.server = ApiServer(self.store, port=port, tokens=tokens, authorizer=rbac, admit=admit)

    def start(self) -> None:
        """Listen."""
        self.server.start()
        self.server.write_kubeconfig(self._access.admin, token=_ADMIN_TOKEN)
        self.server.write_kubeconfig(self._access.daemon, token=_DAEMON_TOKEN)
        self._access.give(self.store)

    def make_namespace(self, name: str, *accounts: str) -> None:
        """Make a namespace with these service accounts."""
        self.store.create(NAMESPACES, {"metadata": {"name": name}})
        for account in ("default", *accounts):
            self.store.create(SERVICE_ACCOUNTS, {"metadata": {"name": account, "namespace": name}})

    def changed(self, change: Change) -> None:
        """Something changed in the store."""
        self._controllers.changed(change)

    def stop(self) -> None:
        """Stop listening."""
        self.server.stop()
