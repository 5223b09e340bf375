"""What an administrator types, with real kubectl."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import (
    CLUSTER_ROLES,
    CONFIGMAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    EVENTS,
    LEASES,
    NAMESPACES,
    NODES,
    POD_DISRUPTION_BUDGETS,
    PODS,
    SECRETS,
)
from mig_manager.simulation.store import MemoryStore
from mig_manager.simulation.values import now
from tests.simulation.api.clients import Kubectl, budget, config_map, node, pod

_LABEL = "nvidia.com/mig.config"
_MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata:
  name: layouts
data:
  config.yaml: |
    version: v1
"""


@pytest.fixture
def kubectl(store: MemoryStore, swift_kubelet: None, kubectl: Kubectl) -> Kubectl:
    """Of a cluster that the test may change."""
    fill(store)
    return kubectl


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubectl]:
    """Of a cluster that nobody changes."""
    store = MemoryStore()
    fill(store)
    with ApiServer(store) as server:
        yield Kubectl(server, tmp_path_factory.mktemp("kubectl"))


def fill(store: MemoryStore) -> None:
    """One GPU node, two pods of a set, a DaemonSet with its pod, and an Event."""
    store.create(NODES, node("gpu-1", **{_LABEL: "all-disabled"}))
    template = {"metadata": {"labels": {"app": "t"}}, "spec": {"containers": [{"name": "c", "image": "i:1"}]}}
    spec = {"selector": {"matchLabels": {"app": "t"}}, "template": template}
    daemons = store.create(DAEMON_SETS, {"metadata": {"name": "plugin"}, "spec": spec})
    workers = store.create(DEPLOYMENTS, {"metadata": {"name": "work"}, "spec": {**spec, "replicas": 2}})
    owners = {"w-0": workers, "w-1": workers, "plugin-x": daemons}
    for name, owner in owners.items():
        made = pod(name, app="w")
        reference = {"apiVersion": "apps/v1", "controller": True, "kind": owner["kind"]}
        reference |= {"name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
        made["metadata"]["ownerReferences"] = [reference]
        store.create(PODS, made)
    event: Object = {"type": "Normal", "reason": "Repartitioned", "message": "two GPUs changed", "count": 1}
    involved = {"apiVersion": "v1", "kind": "Node", "name": "gpu-1", "uid": "gpu-1"}
    event |= {"metadata": {"name": "e"}, "involvedObject": involved, "source": {"component": "mig-manager"}}
    store.create(EVENTS, {**event, "firstTimestamp": now(), "lastTimestamp": now()})
    store.create(CONFIGMAPS, config_map("settings", a="1"))
    store.create(LEASES, {"metadata": {"name": "slot-0"}, "spec": {"holderIdentity": "gpu-1"}})
    store.create(POD_DISRUPTION_BUDGETS, budget("b", 1, app="w"))


def _node(store: MemoryStore) -> Object:
    held = store.get(NODES, None, "gpu-1")
    assert held is not None
    return held


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            f"get nodes -L {_LABEL}",
            r"NAME +STATUS +ROLES +AGE +VERSION +MIG.CONFIG\ngpu-1 +Ready +<none> +[\dhms]+ +v1.34.0 +all-disabled\n",
        ),
        (f"get nodes -l {_LABEL}=all-disabled -o name", r"^node/gpu-1\n$"),
        ("get no gpu-1 -o wide", r"10.0.0.1 +<none> +Simulated OS"),
        ("get node gpu-1 -o json", r'"nvidia.com/mig.config": "all-disabled"'),
        (r"get node gpu-1 -o jsonpath={.metadata.labels.nvidia\.com/mig\.config}", r"^all-disabled$"),
        ("get nodes --show-labels", r"kubernetes.io/hostname=gpu-1"),
        (
            "get pods -A -o wide",
            r"default +w-0 +1/1 +Running +0 +[\dhms]+ +10.1.0.1 +gpu-1 +<none> +<none>\n",
        ),
        ("get pods --field-selector spec.nodeName=other", r"^$"),
        ("get pods --selector app=w --no-headers", r"^plugin-x .*\nw-0 .*\nw-1 .*\n$"),
        ("get pods --sort-by=.metadata.name -o name", r"pod/w-0\npod/w-1\n$"),
        ("get events", r"Normal +Repartitioned +node/gpu-1 +two GPUs changed"),
        ("events --for node/gpu-1", r"Normal +Repartitioned +Node/gpu-1 +two GPUs changed"),
        ("get cm", r"settings +1 +[\dhms]+\n"),
        ("get ds,deploy", r"daemonset.apps/plugin +0 +0 +0 +0 +0 +<none>"),
        ("get all", r"pod/w-0 +1/1(.|\n)*deployment.apps/work +0/2"),
        ("get lease -A", r"default +slot-0 +gpu-1"),
        ("get pdb", r"b +1 +N/A +2 +[\dhms]+\n"),
        ("get ns", r"kube-system +Active"),
        (
            "describe node gpu-1",
            r"nvidia.com/gpu: +2\n(.|\n)*Non-terminated Pods: +\(3 in total\)\n"
            r"(.|\n)*Repartitioned +[\dhms]+ +mig-manager +two GPUs changed\n",
        ),
        ("describe pod w-0", r"Node: +gpu-1"),
        ("describe cm settings", r"a:\n----\n1\n"),
        ("logs w-0", r"w-0/main"),
        ("explain node.spec.unschedulable", r"FIELD: unschedulable <boolean>"),
        ("api-resources", r"poddisruptionbudgets +pdb +policy/v1 +true +PodDisruptionBudget"),
        ("api-versions", r"apps/v1\n(.|\n)*\nv1\n$"),
        ("version", r"Server Version: v1.34"),
        ("auth can-i patch nodes", r"^yes\n"),
        ("auth whoami", r"Username +kubernetes-admin"),
        ("wait --for=condition=Ready node/gpu-1 --timeout=60s", r"node/gpu-1 condition met"),
    ],
)
def test_reading(reader: Kubectl, words: str, shown: str) -> None:
    assert re.search(shown, reader(*words.split(" ")))


def test_labels_and_annotations(kubectl: Kubectl, store: MemoryStore) -> None:
    assert kubectl("label", "node", "gpu-1", f"{_LABEL}=all-1g.10gb", "--overwrite") == "node/gpu-1 labeled\n"
    assert _node(store)["metadata"]["labels"][_LABEL] == "all-1g.10gb"
    refused = kubectl.run("label", "node", "gpu-1", f"{_LABEL}=other")
    assert (refused.returncode, "--overwrite is false" in refused.stderr) == (1, True)
    kubectl("label", "node", "gpu-1", f"{_LABEL}-")
    kubectl("annotate", "node", "gpu-1", "example.com/note=hello there")
    assert _LABEL not in _node(store)["metadata"]["labels"]
    assert _node(store)["metadata"]["annotations"] == {"example.com/note": "hello there"}


def test_cordon_taint_and_drain(kubectl: Kubectl, store: MemoryStore) -> None:
    assert kubectl("cordon", "gpu-1") == "node/gpu-1 cordoned\n"
    assert "Ready,SchedulingDisabled" in kubectl("get", "node", "gpu-1")
    assert kubectl("uncordon", "gpu-1") == "node/gpu-1 uncordoned\n"
    assert "unschedulable" not in _node(store)["spec"]
    kubectl("taint", "node", "gpu-1", "mig-manager/not-ready:NoSchedule")
    assert [each["key"] for each in _node(store)["spec"]["taints"]] == ["mig-manager/not-ready"]
    kubectl("taint", "node", "gpu-1", "mig-manager/not-ready-")
    assert not _node(store)["spec"].get("taints")
    kubectl("delete", "pdb", "b")
    assert "node/gpu-1 drained" in kubectl("drain", "gpu-1", "--ignore-daemonsets")
    assert [each["metadata"]["name"] for each in store.list(PODS)[0]] == ["plugin-x"]


def test_a_budget_blocks_a_drain(kubectl: Kubectl, store: MemoryStore) -> None:
    kubectl("create", "pdb", "strict", "--selector=app=w", "--min-available=100%", "--dry-run=server")
    kubectl("delete", "pdb", "b")
    kubectl("create", "pdb", "strict", "--selector=app=w", "--min-available=100%")
    draining = kubectl.start("drain", "gpu-1", "--ignore-daemonsets")
    assert draining.stdout is not None
    said = next(line for line in draining.stdout if "will retry" in line)
    assert "Cannot evict pod as it would violate the pod's disruption budget." in said
    assert len(store.list(PODS)[0]) == 3
    draining.terminate()
    draining.wait(60)
    draining.stdout.close()


def test_config_maps_are_applied_edited_and_deleted(
    kubectl: Kubectl, store: MemoryStore, tmp_path: Path
) -> None:
    def data() -> str:
        held = store.get(CONFIGMAPS, "default", "layouts")
        return "" if held is None else held["data"]["config.yaml"]

    assert kubectl("apply", "-f", "-", stdin=_MANIFEST) == "configmap/layouts created\n"
    assert kubectl("apply", "-f", "-", stdin=_MANIFEST) == "configmap/layouts unchanged\n"
    longer = _MANIFEST + "    mig-configs: {}\n"
    assert kubectl.run("diff", "-f", "-", stdin=longer).returncode == 1
    assert kubectl("apply", "-f", "-", stdin=longer) == "configmap/layouts configured\n"
    assert data() == "version: v1\nmig-configs: {}\n"
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/mig-configs: {}/mig-configs: {a: []}/' \"$1\"\n")
    editor.chmod(0o755)
    assert kubectl("edit", "cm", "layouts", EDITOR=str(editor)) == "configmap/layouts edited\n"
    assert data() == "version: v1\nmig-configs: {a: []}\n"
    assert "serverside-applied" in kubectl("apply", "--server-side", "-f", "-", stdin=_MANIFEST)
    assert data() == "version: v1\n"
    misspelt = kubectl.run("apply", "-f", "-", stdin=_MANIFEST + "dta: {}\n")
    assert 'unknown field "dta"' in misspelt.stderr
    assert kubectl("replace", "-f", "-", stdin=longer) == "configmap/layouts replaced\n"
    assert kubectl("delete", "cm", "layouts").startswith('configmap "layouts" deleted')
    assert data() == ""
    kubectl("create", "configmap", "other", "--from-literal=a=b")
    kubectl("create", "-f", "-", "--dry-run=server", stdin=_MANIFEST)
    assert [each["metadata"]["name"] for each in store.list(CONFIGMAPS)[0]] == ["other", "settings"]
    assert "already exists" in kubectl.run("create", "configmap", "other").stderr


def test_what_kubectl_creates_it_sends_in_protobuf(kubectl: Kubectl, store: MemoryStore) -> None:
    kubectl("create", "namespace", "gpu")
    kubectl("create", "serviceaccount", "mig")
    kubectl("create", "secret", "generic", "s", "--from-literal=a=b")
    kubectl("create", "clusterrole", "nodes", "--verb=get,patch", "--resource=nodes", "--resource-name=a")
    kubectl("create", "clusterrolebinding", "nodes", "--clusterrole=nodes", "--serviceaccount=default:mig")
    kubectl("create", "deployment", "web", "--image=web:1", "--replicas=2", "--port=80")
    role = store.get(CLUSTER_ROLES, None, "nodes")
    assert role is not None
    assert role["rules"] == [
        {"verbs": ["get", "patch"], "apiGroups": [""], "resources": ["nodes"], "resourceNames": ["a"]}
    ]
    assert "default/mig" in kubectl("get", "clusterrolebinding", "nodes", "-o", "wide")
    web = store.get(DEPLOYMENTS, "default", "web")
    assert web is not None
    [container] = web["spec"]["template"]["spec"]["containers"]
    assert (web["spec"]["replicas"], container["image"]) == (2, "web:1")
    assert container["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    secret = store.get(SECRETS, "default", "s")
    assert secret is not None
    assert secret["data"] == {"a": "Yg=="}
    refused = kubectl.run("create", "quota", "q", "--hard=pods=2")
    assert (refused.returncode, store.get(NAMESPACES, None, "gpu") is not None) == (1, True)


@pytest.mark.parametrize(
    ("kind", "patch"),
    [
        ("merge", '{"metadata":{"labels":{"x":"y"}}}'),
        ("strategic", '{"metadata":{"labels":{"x":"y"}}}'),
        ("json", '[{"op":"add","path":"/metadata/labels/x","value":"y"}]'),
    ],
)
def test_patches(kubectl: Kubectl, store: MemoryStore, kind: str, patch: str) -> None:
    assert kubectl("patch", "node", "gpu-1", f"--type={kind}", "-p", patch) == "node/gpu-1 patched\n"
    assert _node(store)["metadata"]["labels"]["x"] == "y"
    kubectl("patch", "node", "gpu-1", "--subresource=status", "-p", '{"status":{"phase":"Running"}}')
    assert _node(store)["status"]["phase"] == "Running"


def test_pods_are_deleted_and_workloads_scaled_and_restarted(kubectl: Kubectl, store: MemoryStore) -> None:
    assert kubectl("delete", "pod", "w-0").startswith('pod "w-0" deleted')
    assert store.get(PODS, "default", "w-0") is None
    assert kubectl("scale", "deployment", "work", "--replicas=5") == "deployment.apps/work scaled\n"
    held = store.get(DEPLOYMENTS, "default", "work")
    assert held is not None
    assert held["spec"]["replicas"] == 5
    assert kubectl("rollout", "restart", "daemonset", "plugin") == "daemonset.apps/plugin restarted\n"
    restarted = store.get(DAEMON_SETS, "default", "plugin")
    assert restarted is not None
    assert restarted["metadata"]["generation"] == 2
    assert "kubectl.kubernetes.io/restartedAt" in restarted["spec"]["template"]["metadata"]["annotations"]
    status = {"observedGeneration": 2, "desiredNumberScheduled": 1}
    status |= {"updatedNumberScheduled": 1, "numberAvailable": 1}
    store.update(DAEMON_SETS, "default", "plugin", lambda each: {**each, "status": status})
    assert "successfully rolled out" in kubectl("rollout", "status", "ds/plugin", "--timeout=60s")
    kubectl("delete", "deployment", "work")
    assert [each["metadata"]["name"] for each in store.list(PODS)[0]] == ["plugin-x"]


def test_a_watch_shows_changes_as_they_come(kubectl: Kubectl, server: ApiServer, store: MemoryStore) -> None:
    watching = kubectl.start("get", "nodes", "-L", _LABEL, "-w")
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("NAME")
    assert "all-disabled" in watching.stdout.readline()
    assert server.requests.wait_for(lambda request: request.verb == "watch", 60)

    def relabel(held: Object) -> Object:
        held["metadata"]["labels"][_LABEL] = "all-1g.10gb"
        return held

    store.update(NODES, None, "gpu-1", relabel)
    assert "all-1g.10gb" in watching.stdout.readline()
    watching.terminate()
    watching.wait(60)
    watching.stdout.close()


def test_waiting_for_a_label_ends_when_it_comes(
    kubectl: Kubectl, server: ApiServer, store: MemoryStore
) -> None:
    path = r"jsonpath={.metadata.labels.nvidia\.com/mig\.config\.state}=success"
    waiting = kubectl.start("wait", "node/gpu-1", f"--for={path}", "--timeout=120s")
    assert server.requests.wait_for(lambda request: request.verb == "watch", 60)

    def succeed(held: Object) -> Object:
        held["metadata"]["labels"][f"{_LABEL}.state"] = "success"
        return held

    store.update(NODES, None, "gpu-1", succeed)
    out, _ = waiting.communicate(timeout=60)
    assert (waiting.returncode, out) == (0, "node/gpu-1 condition met\n")


def test_get_nodes_costs_three_requests_at_first_and_one_later(kubectl: Kubectl, server: ApiServer) -> None:
    def asked() -> list[str]:
        server.requests.clear()
        kubectl("get", "nodes")
        return [request.path for request in server.requests.all()]

    assert asked() == ["/api", "/apis", "/api/v1/nodes"]
    assert asked() == ["/api/v1/nodes"]


def test_json_output_is_whole(kubectl: Kubectl) -> None:
    listed = json.loads(kubectl("get", "pods", "-o", "json"))
    assert [each["kind"] for each in listed["items"]] == ["Pod"] * 3
