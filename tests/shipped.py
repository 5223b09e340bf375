"""What deploy/ gives to install: the rules and the admission policy that the daemon lives with in the tests."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import yaml

from mig_manager.simulation.api.grants import Grant
from mig_manager.simulation.objects import Object
from tests.admission import Policy

ROOT = Path(__file__).parents[1]
DEPLOY = ROOT / "deploy"
COMPONENTS = ("dra", "stale-resources")
"""The rules that only some installations need."""


def documents(*files: Path) -> list[Object]:
    """All YAML documents of some files."""
    return [each for file in files for each in yaml.safe_load_all(file.read_text()) if each]


def rbac_files(*components: str) -> list[Path]:
    """The files that grant what every installation needs, and what these components do."""
    base = [DEPLOY / "rbac" / name for name in ("clusterrole.yaml", "role.yaml", "bindings.yaml")]
    return [*base, *(DEPLOY / "rbac" / each / "rules.yaml" for each in components)]


def shipped_rules(*components: str) -> list[Grant]:
    """The rules of the shipped Roles and ClusterRoles, where they hold."""
    return [
        Grant(each["rules"], namespace=each["metadata"].get("namespace", ""))
        for each in documents(*rbac_files(*components))
        if "rules" in each
    ]


@cache
def shipped_policy() -> Policy:
    """The shipped admission policy."""
    return Policy(documents(DEPLOY / "policy" / "policy.yaml")[0])


def verbs(grants: list[Grant]) -> set[tuple[str, str]]:
    """Verb and resource of each rule."""
    return {
        (verb, resource)
        for grant in grants
        for rule in grant.rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def component_verbs(component: str) -> set[tuple[str, str]]:
    """Verb and resource of each rule of a component."""
    return verbs(
        [
            Grant(each["rules"])
            for each in documents(DEPLOY / "rbac" / component / "rules.yaml")
            if "rules" in each
        ]
    )
