"""The shipped YAML fits together, and grants what the daemon asks for: no more, no less."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from kubernetes_validate.utils import validate

from mig_manager.cluster.client import Api, collection_path
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.permissions import Need, needs
from mig_manager.daemon.settings import Settings, environment_name, load_settings
from mig_manager.simulation.api.authorization import ADMIN, User, stored_rbac
from mig_manager.simulation.api.grants import Grant, grant
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Object
from mig_manager.simulation.store import MemoryStore
from mig_manager.simulation.world import ACCOUNT, CONFIG_MAP, NAMESPACE
from tests.cluster.slotusers import PATIENCE_S, SlotUser
from tests.requirements import need
from tests.shipped import (
    COMPONENTS,
    DEPLOY,
    documents,
    rbac_files,
    shipped_policy,
    shipped_rules,
    verbs,
)

OLDEST, NEWEST = "1.30", "1.37"
"""The Kubernetes versions between which the policy is supported and the schemas are at hand."""
FILES = [
    *rbac_files(*COMPONENTS),
    DEPLOY / "policy" / "policy.yaml",
    DEPLOY / "policy" / "binding.yaml",
    DEPLOY / "gpu-operator" / "permissions.yaml",
]


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(DEPLOY)))
def test_every_document_has_the_official_form(file: Path, version: str) -> None:
    for each in documents(file):
        validate(each, version, strict=True)


def test_every_role_is_bound_to_the_one_service_account_and_to_nothing_else() -> None:
    shipped = documents(*rbac_files(*COMPONENTS))
    subject = {"kind": "ServiceAccount", "name": ACCOUNT, "namespace": NAMESPACE}
    roles = {key(each): each for each in shipped if "rules" in each}
    bindings = {key(each): each for each in shipped if "roleRef" in each}
    assert bindings.keys() == roles.keys()
    for each in bindings.values():
        assert each["subjects"] == [subject]
        reference = each["roleRef"]
        assert (reference["kind"] == "ClusterRole") == ("namespace" not in each["metadata"])
        assert reference["name"] == each["metadata"]["name"]


def key(manifest: Object) -> tuple[str, str]:
    return manifest["metadata"].get("namespace", ""), manifest["metadata"]["name"]


def test_the_policy_is_about_the_account_that_the_rules_are_bound_to() -> None:
    policy, binding = documents(DEPLOY / "policy" / "policy.yaml", DEPLOY / "policy" / "binding.yaml")
    conditions = policy["spec"]["matchConditions"]
    account = f"'{User.service_account(NAMESPACE, ACCOUNT).name}'"
    assert [each["expression"] for each in conditions] == [f"request.userInfo.username == {account}"]
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert binding["spec"] == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}


def test_no_rule_grants_everything_of_a_kind() -> None:
    for each in documents(*rbac_files(*COMPONENTS)):
        for rule in each.get("rules", ()):
            assert "*" not in [*rule["verbs"], *rule["resources"], *rule["apiGroups"]]


@pytest.mark.parametrize(
    ("settings", "components"),
    [
        ({}, ()),
        ({"operand_namespace": "gpu-operator"}, ()),
        ({"drain_mode": "delete"}, ()),
        ({"remove_stale_resources": True}, ("stale-resources",)),
    ],
)
def test_what_the_daemon_asks_about_at_its_start_is_granted(
    settings: dict[str, object], components: tuple[str, ...]
) -> None:
    wanted = needs(
        load_settings(node_name="gpu-1", pod_namespace=NAMESPACE, config_map_name=CONFIG_MAP, **settings)
    )
    assert [str(each.permission) for each in wanted if not granted(each, components)] == []


def granted(wanted: Need, components: tuple[str, ...]) -> bool:
    asked = wanted.permission
    return any(
        each.namespace in ("", asked.namespace)
        and asked.verb in rule["verbs"]
        and asked.resource in rule["resources"]
        and ("resourceNames" not in rule or asked.name in rule["resourceNames"])
        for each in shipped_rules(*components)
        for rule in each.rules
    )


def test_slots_are_had_by_the_rules_for_them_without_a_verb_too_many(tmp_path: Path) -> None:
    """One node waits for another, and has the slot after it."""
    store = MemoryStore()
    account = User.service_account(NAMESPACE, ACCOUNT)
    tokens = {"admin": ADMIN}
    tokens |= {name: User.service_account(NAMESPACE, ACCOUNT, node=name) for name in ("a", "b")}
    with ApiServer(store, tokens=tokens, authorizer=stored_rbac(store), admit=shipped_policy()) as server:
        server.write_kubeconfig(tmp_path / "admin", token="admin")
        for number, each in enumerate(shipped_rules()):
            grant(store, each, f"granted-{number}", NAMESPACE, ACCOUNT)
        with Api.connect(tmp_path / "admin") as admin:
            admin.create(collection_path("namespaces"), {"metadata": {"name": NAMESPACE}})
            users = []
            for name in ("a", "b"):
                uid = admin.create(collection_path("nodes"), {"metadata": {"name": name}})["metadata"]["uid"]
                server.write_kubeconfig(tmp_path / name, token=name)
                users.append(SlotUser(tmp_path / name, NAMESPACE, name, limit=1, uid=uid))
        first, second = users
        assert first.take()
        second.start()
        assert server.requests.wait_for(
            lambda each: each.user == account.name and "place-b" in str(each.body), PATIENCE_S
        )
        first.slots.close()
        second.join()
        assert second.has.is_set()
        second.slots.seal(Deadline.after(PATIENCE_S))
        second.slots.close()
        assert server.requests.denied(account.name) == frozenset()
        leases = {each for each in verbs(shipped_rules()) if each[1] == "leases"}
        assert server.requests.used(account.name) >= leases


@pytest.mark.parametrize("directory", ["rbac", "policy"])
def test_kustomize_builds_it(directory: str) -> None:
    need("kubectl", shutil.which("kubectl"))
    built = subprocess.run(
        ["kubectl", "kustomize", DEPLOY / directory], capture_output=True, text=True, check=True, timeout=120
    )
    assert built.stdout.count("kind: Namespace\n") == 0
    assert "mig-manager" in built.stdout


def test_with_the_additions_the_gpu_operators_role_has_every_shipped_verb_but_those_for_a_config_map() -> (
    None
):
    """There CONFIG_FILE is mounted."""
    added = documents(DEPLOY / "gpu-operator" / "permissions.yaml")
    rules = [rule for each in added for rule in each.get("rules", ())]
    wanted = {each for each in verbs(shipped_rules()) if each[1] != "configmaps"}
    assert verbs([Grant(rules)]) | {(verb, "nodes") for verb in ("get", "list", "watch", "patch")} == wanted
    accounts = [each["subjects"] for each in added if "subjects" in each]
    subject = {"kind": "ServiceAccount", "name": "nvidia-mig-manager", "namespace": "gpu-operator"}
    assert accounts == [[subject]] * 2


def test_the_values_for_the_gpu_operator_name_settings() -> None:
    values = documents(DEPLOY / "gpu-operator" / "values.yaml")[0]["migManager"]
    known = {environment_name(field) for field in Settings.model_fields}
    assert {each["name"] for each in values["env"]} <= known
    assert values.keys() == {"enabled", "repository", "image", "version", "env"}
