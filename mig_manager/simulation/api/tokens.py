"""Tokens of service accounts, as the API server gives them out."""

from __future__ import annotations

import secrets
from collections.abc import MutableMapping

from mig_manager.simulation.api.authorization import User
from mig_manager.simulation.api.calls import Call
from mig_manager.simulation.api.status import Cause, bad_request, invalid, not_found
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import PODS, SERVICE_ACCOUNTS
from mig_manager.simulation.store import MemoryStore
from mig_manager.simulation.values import now

_LIFETIME_S = 3600


def give_token(store: MemoryStore, tokens: MutableMapping[str, User], call: Call, body: Object) -> Object:
    """The answer to a TokenRequest; the token is known from now on. It can be bound to a pod of the account."""
    assert call.namespace is not None
    if store.get(SERVICE_ACCOUNTS, call.namespace, call.name) is None:
        raise not_found(SERVICE_ACCOUNTS, call.name)
    spec = body.get("spec") or {}
    node = _node_of(store, call, spec.get("boundObjectRef"))
    token = secrets.token_urlsafe(32)
    tokens[token] = User.service_account(call.namespace, call.name, node=node)
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": {"name": call.name, "namespace": call.namespace, "creationTimestamp": now()},
        "spec": {"expirationSeconds": _LIFETIME_S, **spec},
        "status": {"token": token, "expirationTimestamp": now(_LIFETIME_S)},
    }


def _node_of(store: MemoryStore, call: Call, bound: Object | None) -> str:
    """Where the pod runs that a token is bound to; empty for an unbound one."""
    if bound is None:
        return ""
    if bound.get("kind") != "Pod":
        raise bad_request("the simulation binds tokens to pods only")
    name = str(bound.get("name", ""))
    pod = store.get(PODS, call.namespace, name)
    if pod is None:
        raise not_found(PODS, name)
    if pod["spec"].get("serviceAccountName", "default") != call.name:
        text = (
            f"cannot bind token for serviceaccount {call.name!r} to pod running with different serviceaccount"
        )
        raise invalid(SERVICE_ACCOUNTS, call.name, [Cause("FieldValueInvalid", text, "spec.boundObjectRef")])
    return str(pod["spec"].get("nodeName", ""))
