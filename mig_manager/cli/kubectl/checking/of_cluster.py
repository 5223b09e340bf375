"""Checks of what all Nodes share: the Kubernetes version, the daemon's pods, permissions, the admission policy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from mig_manager.cli.kubectl.checking.daemonpods import Account
from mig_manager.cli.kubectl.checking.snapshot import CLUSTER, Check, Snapshot, Verdict
from mig_manager.cluster.objects import JsonObject
from mig_manager.daemon.permissions import Need

OLDEST, NEWEST = 30, 37
"""Minor versions of Kubernetes 1 that the daemon is made for."""
_GRANT = "kubectl apply -k deploy/rbac (docs/permissions.md)"
_NO_ACCOUNT = "no pod of the daemon is seen, so that its service account is not known"


def kubernetes(seen: Snapshot) -> Iterator[Check]:
    """Its version."""
    match = re.match(r"v?1\.(\d+)", seen.kubernetes)
    supported = f"1.{OLDEST} to 1.{NEWEST}"
    if match is None:
        why = seen.unread.get("kubernetes", "the API server does not tell its version")
        yield Check("kubernetes", CLUSTER, Verdict.UNKNOWN, why)
    elif OLDEST <= int(match[1]) <= NEWEST:
        yield Check("kubernetes", CLUSTER, Verdict.OK, f"{seen.kubernetes}, of {supported}")
    else:
        text = f"{seen.kubernetes}; mig-manager is made for {supported}"
        verdict = Verdict.PROBLEM if int(match[1]) < OLDEST else Verdict.WARNING
        yield Check("kubernetes", CLUSTER, verdict, text)


def daemons(seen: Snapshot) -> Iterator[Check]:
    """Whether there are any."""
    if seen.pods is None:
        yield Check("daemon", CLUSTER, Verdict.UNKNOWN, seen.unread["pods"])
        return
    found = seen.daemons
    if found:
        ready = sum(each.ready for each in found)
        namespaces = ", ".join(sorted({each.namespace for each in found}))
        yield Check("daemon", CLUSTER, Verdict.OK, f"{ready} of {len(found)} pods ready, in {namespaces}")
    elif any(node.status is not None or node.gpus for node in seen.nodes):
        yield Check(
            "daemon",
            CLUSTER,
            Verdict.WARNING,
            "no pod of the daemon is seen, although Nodes say what it has found: it runs without a pod, or is gone",
            "where it is gone for good: mig-manager release",
        )
    else:
        # A Node that asks for a layout and is not heard is a problem of that Node.
        text = "no daemon is seen, and no Node says a word of one: it is not installed, or has just begun"
        yield Check("daemon", CLUSTER, Verdict.WARNING, text, "to install it: docs/install.md")


def versions(seen: Snapshot) -> Iterator[Check]:
    """Of the daemon's images against this program."""
    if not seen.daemons:
        return
    found = sorted({each.version for each in seen.daemons})
    words = ", ".join(each or "an image without a tag" for each in found)
    if found == [seen.version]:
        yield Check("version", CLUSTER, Verdict.OK, f"daemon and kubectl-mig {seen.version}")
    elif found == [""]:
        yield Check(
            "version", CLUSTER, Verdict.UNKNOWN, "the daemon's image has no tag that tells its version"
        )
    else:
        several = len(found) > 1
        yield Check(
            "version",
            CLUSTER,
            Verdict.WARNING,
            f"the daemon is {words}, kubectl-mig {seen.version}" + ("; nodes differ" if several else ""),
            "kubectl rollout status daemonset on the daemon's, if an upgrade is under way" if several else "",
        )


def permissions(seen: Snapshot) -> Iterator[Check]:
    """Of the daemon's service account."""
    if seen.missing is None and seen.complaints:
        text = f"the daemon says: {seen.complaints[0]}"
        yield Check("permissions", CLUSTER, Verdict.WARNING, text, _GRANT)
    elif seen.missing is None:
        yield Check(
            "permissions",
            CLUSTER,
            Verdict.UNKNOWN,
            f"you may not ask what the daemon may do: {seen.unread['missing']}",
            "kubectl auth can-i create subjectaccessreviews.authorization.k8s.io",
        )
    elif not seen.missing:
        yield Check("permissions", CLUSTER, Verdict.UNKNOWN, _NO_ACCOUNT)
    for account, needs in sorted((seen.missing or {}).items()):
        yield _permissions(account, needs)


def _permissions(account: Account, needs: Sequence[Need]) -> Check:
    if not needs:
        return Check("permissions", CLUSTER, Verdict.OK, f"{account} has all that it needs")
    fatal = [each for each in needs if each.required]
    missing = {each.permission for each in needs}
    worth_a_word = fatal or [each for each in needs if each.implied_by not in missing]
    words = "; ".join(f"no permission to {each.permission}: {each.without}" for each in worth_a_word)
    verdict = Verdict.PROBLEM if fatal else Verdict.WARNING
    return Check("permissions", CLUSTER, verdict, f"{account}: {words}", _GRANT)


def admission_policy(seen: Snapshot) -> Iterator[Check]:
    """Whether a daemon's token is kept to its own Node."""
    accounts = sorted({each.account for each in seen.daemons})
    if seen.policies is None or seen.bindings is None:
        why = seen.unread.get("policies") or seen.unread.get("bindings", "")
        yield Check("admission-policy", CLUSTER, Verdict.UNKNOWN, why)
        return
    if not accounts:
        yield Check("admission-policy", CLUSTER, Verdict.UNKNOWN, _NO_ACCOUNT)
    for account in accounts:
        yield _policy(account, seen.policies, seen.bindings)


def _policy(account: Account, policies: Sequence[JsonObject], bindings: Sequence[JsonObject]) -> Check:
    named = {each["metadata"]["name"] for each in policies if _is_about(each, account)}
    bound = [each["spec"] for each in bindings if each["spec"].get("policyName") in named]
    if any("Deny" in (each.get("validationActions") or ()) for each in bound):
        return Check("admission-policy", CLUSTER, Verdict.OK, f"{account} is kept to its own Node")
    todo = "kubectl apply -k deploy/policy (docs/security.md)"
    if bound:
        text = f"the policy about {account} denies nothing, it only reports"
    elif named:
        text = f"the policy about {account} has no binding, and so no effect"
    else:
        text = f"none is about {account}: its token, used elsewhere, could change any Node"
    return Check("admission-policy", CLUSTER, Verdict.WARNING, text, todo)


def _is_about(policy: JsonObject, account: Account) -> bool:
    conditions = (policy.get("spec") or {}).get("matchConditions") or ()
    return any(account.user in each.get("expression", "") for each in conditions)
