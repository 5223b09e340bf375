"""What removes mig-manager leaves every Node in order, with the permissions that the chart gives to it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from mig_manager.cluster.operands import PAUSED
from mig_manager.simulation.api.authorization import ADMIN, User, stored_rbac
from mig_manager.simulation.api.grants import Grant, grant
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.control.jobs import has_ended
from mig_manager.simulation.node.processes import RealProcess
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import DAEMON_SETS, JOBS, LEASES, NODES, of_object
from mig_manager.simulation.store import MemoryStore
from mig_manager.simulation.world import NAMESPACE
from tests.cli.conftest import Cli
from tests.daemon.node import PATIENCE, GpuNode
from tests.daemon.workloads import amid_the_apply
from tests.deploy.charts import container, daemon_set, of_kind, render

DEPLOY = "nvidia.com/gpu.deploy."
STATE = "nvidia.com/mig.config.state"
CLEANUP = "mig-manager-cleanup"
HOOK = "helm.sh/hook"
PRE_DELETE = "pre-delete"


def grants() -> list[Grant]:
    """What the chart permits to the Job that cleans up."""
    roles = [each for each in render() if each["kind"] in ("Role", "ClusterRole")]
    return [
        Grant(each["rules"], each["metadata"].get("namespace", ""))
        for each in roles
        if each["metadata"]["name"] == CLEANUP
    ]


def journal(**more: Any) -> str:
    return json.dumps({"version": 1, "startedAt": "2026-11-01T10:00:00Z", "cordoned": True, **more})


def node(name: str, labels: Object | None = None, annotations: Object | None = None, **spec: Any) -> Object:
    meta = {"name": name, "labels": labels or {}, "annotations": annotations or {}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "spec": spec}


def lease(name: str, holder: str, labels: Object) -> Object:
    meta = {"name": name, "namespace": NAMESPACE, "labels": labels}
    spec = {"holderIdentity": holder}
    return {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """An API server without controllers, where KUBECONFIG is that of the Job."""
    store = MemoryStore()
    account = User.service_account(NAMESPACE, CLEANUP)
    for number, each in enumerate(grants()):
        grant(store, each, f"cleanup-{number}", NAMESPACE, CLEANUP)
    tokens = {"admin": ADMIN, "cleanup": account}
    with ApiServer(store, tokens=tokens, authorizer=stored_rbac(store)) as made:
        made.write_kubeconfig(tmp_path / "kubeconfig", token="cleanup")
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield made


def test_only_what_is_ours_is_put_back(cli: Cli, server: ApiServer) -> None:
    taint = {"key": "mig-manager/not-ready", "effect": "NoSchedule"}
    other = {"key": "nvidia.com/gpu", "effect": "NoSchedule"}
    wanted = {"nvidia.com/mig.config": "small", "zone": "a"}
    paused = {f"{DEPLOY}dcgm": PAUSED, f"{DEPLOY}device-plugin": PAUSED, f"{DEPLOY}nvsm": "false"}
    status = {"mig-manager/status": "{}", "mig-manager/gpus": "[]", "mig-manager/layouts": "[]"}
    status |= {"mig-manager/layouts-from": "{}", "mig-manager/again": "1"}
    kept = {"example.com/a": "b", "mig-manager/ignore-windows": "true"}
    operands = {f"{DEPLOY}dcgm": "yes", f"{DEPLOY}nvsm": "true"}
    broken_off = {"mig-manager/journal": journal(operands=operands, services=["a.service", "b.service"])}
    store = server.store
    store.create(NODES, node("done", {**wanted, STATE: "success"}, {**status, **kept}))
    store.create(
        NODES,
        node(
            "broken-off",
            {**wanted, **paused, STATE: "pending"},
            {**status, **broken_off},
            unschedulable=True,
            taints=[taint, other],
        ),
    )
    by_an_admin = {"mig-manager/journal": journal(cordoned=False)}
    store.create(NODES, node("of-an-admin", wanted, by_an_admin, unschedulable=True))
    store.create(NODES, node("of-a-newer-version", wanted, {"mig-manager/journal": "?"}, unschedulable=True))
    store.create(NODES, node("new", wanted, taints=[taint]))
    store.create(NODES, node("of-others", {**wanted, **paused}, kept, unschedulable=True, taints=[other]))
    before = store.get(NODES, None, "of-others")
    for name, holder in (("slot-0", "done"), ("place-new", "new"), ("slot-1", "a-node-that-is-gone")):
        store.create(LEASES, lease(name, holder, {"mig-manager/lease": name.partition("-")[0]}))
    store.create(LEASES, lease("of-others", "done", {}))

    one = cli("release", "new", "--leases", NAMESPACE)
    assert one.out == (f"new: taint mig-manager/not-ready taken off\nLeases removed: {NAMESPACE}/place-new\n")
    everywhere = cli("release", "done")
    assert "Leases of fleet slots may be left (label mig-manager/lease): " in everywhere.err
    ended = cli("release", "--all", "--leases", NAMESPACE)
    assert ended.code == 0, ended.err
    assert [each["metadata"]["name"] for each in store.list(LEASES)[0]] == ["of-others"]
    assert "broken-off: taint mig-manager/not-ready taken off, uncordoned, GPU clients resumed: " in ended.out
    assert "broken-off: start on the host: systemctl start b.service a.service" in ended.err
    assert "of-a-newer-version: the journal cannot be read" in ended.err

    def seen(name: str) -> tuple[Object, Object, Object]:
        found = store.get(NODES, None, name)
        assert found is not None
        meta, spec = found["metadata"], found["spec"]
        return meta.get("labels", {}), meta.get("annotations", {}), {k: v for k, v in spec.items() if v}

    resumed = {f"{DEPLOY}dcgm": "yes", f"{DEPLOY}device-plugin": "true", f"{DEPLOY}nvsm": "false"}
    assert seen("done") == (wanted, kept, {})
    assert seen("broken-off") == ({**wanted, **resumed}, {}, {"taints": [other]})
    assert seen("of-an-admin") == (wanted, {}, {"unschedulable": True})
    assert seen("of-a-newer-version") == (wanted, {}, {"unschedulable": True})
    assert seen("new") == (wanted, {}, {})
    assert store.get(NODES, None, "of-others") == before

    again = cli("release", "--all", "--leases", NAMESPACE)
    assert (again.code, again.out, again.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        ([], "name the Nodes, or give --all"),
        (["gpu-1", "--all"], "name the Nodes, or give --all"),
        (["--all", "--daemonset", "mig-manager"], "--daemonset 'mig-manager': a namespace and a name"),
        (["--all", "--daemonset", "a/b/c"], "--daemonset 'a/b/c': a namespace and a name"),
        (["--all", "--wait", "-1"], "--wait"),
    ],
)
def test_bad_input_is_named(cli: Cli, server: ApiServer, arguments: list[str], part: str) -> None:
    ended = cli("release", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert part in ended.err


def test_a_node_that_is_not_there_is_named_before_anything_is_removed(cli: Cli, server: ApiServer) -> None:
    server.requests.clear()
    ended = cli("release", "gpu-9", "--daemonset", "mig-manager/mig-manager")
    assert (ended.code, ended.out) == (2, "")
    assert "there is no Node 'gpu-9'" in ended.err
    assert {each.verb for each in server.requests.all()} == {"list"}


@pytest.fixture
def gpu_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GpuNode]:
    """A node with layout `small`, and a DaemonSet as the chart makes it; KUBECONFIG is that of an administrator."""
    command = (sys.executable, "-m", "mig_manager.cli.main")
    programs = {"mig-manager": partial(RealProcess, command, tmp_path / "kubeconfig")}
    with GpuNode(tmp_path, programs=programs) as made:
        made.start()
        made.becomes("small")
        plain = daemon_set()
        plain["spec"]["template"]["spec"].pop("affinity")
        made.cluster.store.create(DAEMON_SETS, plain)
        made.wait(lambda: made.pods(NAMESPACE), "the pod of the DaemonSet")
        monkeypatch.setenv("KUBECONFIG", str(made.cluster.kubeconfig))
        made.forget()
        yield made


def arguments_of_the_job() -> list[str]:
    """What the Job runs, with less patience."""
    job = container(of_kind(render({"cleanup": {"wait": 120}}), "Job"))
    assert job["command"][0] == "mig-manager"
    return [*job["command"][1:], *job["args"]]


def in_order(node: GpuNode) -> None:
    assert not node.cordoned
    assert node.deploy_labels == {k: v for k, v in node.first_labels.items() if k.startswith(DEPLOY)}
    assert STATE not in node.labels
    assert not [key for key in node.annotations if key.startswith("mig-manager/")]
    assert node.cluster.store.get(DAEMON_SETS, NAMESPACE, "mig-manager") is None
    assert node.pods(NAMESPACE) == {}


def test_a_removal_in_the_middle_of_a_run_waits_for_its_end(cli: Cli, gpu_node: GpuNode) -> None:
    requests = gpu_node.cluster.api.requests
    with amid_the_apply(gpu_node) as gate:
        requests.clear()

        def go_on() -> None:
            """The run ends once the Job has looked; the daemon ends as its container would."""
            assert requests.wait_for(lambda each: (each.user, each.verb) == (ADMIN.name, "list"), PATIENCE)
            gate.open()
            gpu_node.wait(lambda: not gpu_node.pods(NAMESPACE), "the end of the pod")
            gpu_node.terminate()

        with ThreadPoolExecutor(1) as others:
            ending = others.submit(go_on)
            ended = cli(*arguments_of_the_job())
            ending.result()
    assert ended.code == 0, ended.err
    assert "waiting for the end of runs on gpu-node-1" in ended.out
    assert ended.err == ""
    assert gpu_node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}
    in_order(gpu_node)


def run_hook(node: GpuNode) -> str:
    """Do what `helm uninstall` does with the pre-delete hook that the chart renders; gives what its pod has said."""
    store = node.cluster.store
    hook = sorted(
        (each for each in render({"cleanup": {"wait": 0}}) if PRE_DELETE in notes(each).get(HOOK, "")),
        key=lambda each: int(notes(each).get(f"{HOOK}-weight", 0)),
    )
    assert [each["kind"] for each in hook][-1] == "Job"
    for each in hook:
        resource = of_object(each)
        assert resource is not None
        store.create(resource, each)
    job = hook[-1]["metadata"]

    def ended() -> Object | None:
        found = store.get(JOBS, job["namespace"], job["name"])
        return found if found and has_ended(found) else None

    assert node.wait(ended, "the end of the Job")["status"]["succeeded"] == 1
    (pod,) = (each for each in node.pods(NAMESPACE).values() if owned_by_job(each))
    said: str = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
    for each in reversed(hook):
        resource = of_object(each)
        assert resource is not None
        assert "hook-succeeded" in notes(each)[f"{HOOK}-delete-policy"]
        store.delete(resource, each["metadata"].get("namespace"), each["metadata"]["name"])
    return said


def notes(obj: Object) -> dict[str, str]:
    found: dict[str, str] = obj["metadata"].get("annotations") or {}
    return found


def owned_by_job(pod: Object) -> bool:
    return [each["kind"] for each in pod["metadata"].get("ownerReferences", ())] == ["Job"]


def test_the_hook_of_an_uninstall_puts_back_what_a_killed_daemon_left(gpu_node: GpuNode) -> None:
    with amid_the_apply(gpu_node):
        gpu_node.kill()
    assert gpu_node.cordoned
    assert not gpu_node.clients_run
    said = run_hook(gpu_node)
    assert "gpu-node-1: uncordoned, GPU clients resumed: " in said
    assert "gpu-node-1: a run was broken off" in said
    gpu_node.wait(lambda: not gpu_node.pods(NAMESPACE), "the end of the Job's pod")
    in_order(gpu_node)
    account = User.service_account(NAMESPACE, CLEANUP)
    assert gpu_node.cluster.api.requests.denied(account.name) == frozenset()
