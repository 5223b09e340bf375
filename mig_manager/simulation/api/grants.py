"""What a service account may do: roles and bindings in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mig_manager.simulation.objects import Object, Store
from mig_manager.simulation.resources import CLUSTER_ROLE_BINDINGS, CLUSTER_ROLES, ROLE_BINDINGS, ROLES


@dataclass(frozen=True, slots=True)
class Grant:
    """Rules that hold for one account."""

    rules: Sequence[Object]
    """As in a Role: `{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"], "resourceNames": ["a"]}`."""
    namespace: str = ""
    """Where they hold; empty: in the whole cluster."""


def grant(store: Store, what: Grant, name: str, account_namespace: str, account: str) -> None:
    """Bind the rules to a service account: a Role and a RoleBinding of that name, or their cluster kinds."""
    where = {"namespace": what.namespace} if what.namespace else {}
    kind = "Role" if what.namespace else "ClusterRole"
    store.create(
        ROLES if what.namespace else CLUSTER_ROLES,
        {"metadata": {"name": name, **where}, "rules": list(what.rules)},
    )
    store.create(
        ROLE_BINDINGS if what.namespace else CLUSTER_ROLE_BINDINGS,
        {
            "metadata": {"name": name, **where},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": account_namespace}],
        },
    )
