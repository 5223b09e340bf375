"""`kubectl mig doctor` against an API server."""

from __future__ import annotations

import pytest
import yaml

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.operands import PAUSED
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.resources import NAMESPACES, PODS
from tests.cli.kubectl.cluster import Cluster
from tests.cli.kubectl.conftest import Mig
from tests.cli.kubectl.snapshots import daemon, plugin


@pytest.fixture(autouse=True)
def nodes(cluster: Cluster) -> None:
    cluster.clear()
    store = cluster.server.store
    for each in (daemon(), plugin()):
        namespace = each["metadata"]["namespace"]
        if store.get(NAMESPACES, None, namespace) is None:
            store.create(NAMESPACES, {"metadata": {"name": namespace}})
        store.create(PODS, each)
    cluster.add_node("gpu-1")


def pause(cluster: Cluster) -> None:
    cluster.change_node("gpu-1", NodeChange(labels={"nvidia.com/gpu.deploy.dcgm": PAUSED}))


def test_what_is_in_order_is_said_with_what_could_be_better(mig: Mig) -> None:
    ended = mig("doctor")
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert "  warning  admission-policy  none is about mig-manager/mig-manager: " in ended.out
    assert lines[0] == "cluster"
    assert "  ok       permissions       mig-manager/mig-manager has all that it needs" in lines
    assert "  ok       resources         14 nvidia.com/mig-1g.10gb, as the GPUs hold" in lines
    assert lines[-1] == "14 checks: 13 ok, 1 warning"


def test_a_problem_ends_with_1_and_says_what_to_do(cluster: Cluster, mig: Mig) -> None:
    pause(cluster)
    ended = mig("doctor", "gpu-1")
    assert ended.code == 1
    assert "problem  operands          paused by nobody who is still at work" in ended.out
    assert mig("doctor", "-o", "name").out == "node/gpu-1\n"
    assert "-> kubectl label node gpu-1 nvidia.com/gpu.deploy.dcgm=true --overwrite" in ended.out


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_programs_get_the_same(cluster: Cluster, mig: Mig, output: str) -> None:
    pause(cluster)
    ended = mig("doctor", "-o", output)
    found = yaml.safe_load(ended.out)
    assert (ended.code, found["summary"]) == (1, {"ok": 12, "unknown": 0, "warning": 1, "problem": 1})
    (problem,) = (each for each in found["checks"] if each["verdict"] == "problem")
    assert (problem["name"], problem["where"]) == ("operands", "gpu-1")


def test_what_may_not_be_read_is_unknown(cluster: Cluster, mig: Mig) -> None:
    cluster.server.faults.add(Fault("GET", "^/api/v1/pods", status=403, times=None))
    ended = mig("doctor", "-o", "json")
    assert (ended.code, ended.json["summary"]["problem"]) == (0, 0)
    unknown = {each["name"] for each in ended.json["checks"] if each["verdict"] == "unknown"}
    assert unknown == {"daemon", "permissions", "admission-policy", "device-plugin", "owners"}


def test_who_may_not_ask_what_the_daemon_may_is_told(cluster: Cluster, mig: Mig) -> None:
    cluster.server.faults.add(Fault("POST", "subjectaccessreviews", status=403, times=None))
    assert "unknown  permissions       you may not ask what the daemon may do" in mig("doctor").out


def test_without_nodes_there_is_nothing_to_check(cluster: Cluster, mig: Mig) -> None:
    cluster.server.faults.add(Fault("GET", "^/api/v1/nodes", status=403, times=None))
    ended = mig("doctor")
    assert (ended.code, ended.out) == (3, "")
    cluster.clear()
    ended = mig("doctor", "gpu-2")
    assert (ended.code, ended.err) == (2, "error: there is no Node 'gpu-2'; there is none\n")
    ended = mig("doctor", "-l", "pool=none")
    assert (ended.code, ended.out, ended.err) == (2, "", "error: no Node has labels pool=none\n")
