"""What is installed otherwise than from deploy/rbac and deploy/policy grants and forbids the same."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from mig_manager.simulation.objects import Object
from tests.shipped import DEPLOY, documents, rbac_files

Granted = frozenset[tuple[str, str, str, str, str]]


def granted(manifests: Iterable[Object]) -> Granted:
    """Namespace (empty: in the whole cluster), group, resource, name (empty: any) and verb."""
    return frozenset(
        (each["metadata"].get("namespace", ""), group, resource, name, verb)
        for each in manifests
        if each["kind"] in ("Role", "ClusterRole")
        for rule in each["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for name in rule.get("resourceNames", [""])
        for verb in rule["verbs"]
    )


def test_a_rule_more_is_noticed() -> None:
    base = documents(*rbac_files())
    more = granted([*base, *documents(*rbac_files("dra"))]) - granted(base)
    assert {(resource, verb) for _, _, resource, _, verb in more} == {
        ("resourceclaims", "get"),
        ("resourceslices", "list"),
        ("resourceslices", "watch"),
    }


@pytest.mark.parametrize("file", sorted(DEPLOY.glob("*.yaml")), ids=lambda file: file.name)
def test_a_single_file_to_apply_grants_the_same(file: Path) -> None:
    """Policies, where there are any, are those of deploy/policy."""
    manifests = documents(file)
    assert granted(manifests) == granted(documents(*rbac_files()))
    policies = [each["spec"] for each in manifests if each["kind"] == "ValidatingAdmissionPolicy"]
    shipped = documents(DEPLOY / "policy" / "policy.yaml")[0]["spec"]
    assert all(each == shipped for each in policies)
