"""What Nodes say is read as the daemon writes it."""

from __future__ import annotations

from dataclasses import replace

from mig_manager.cli.kubectl.cluster import connect, find_nodes, find_pods
from mig_manager.daemon.status import State
from tests.cli.kubectl.cluster import Cluster


def test_what_stands_on_the_nodes_is_read(cluster: Cluster) -> None:
    cluster.add_node("gpu-1")
    cluster.add_node("gpu-2", "1xH100-80GB-HBM3,1xT4", layout="all-balanced")
    cluster.add_node("gpu-3", layout=None, cordoned=True)
    cluster.say("gpu-2", lambda said: replace(said, state=State.FAILED, message="why"))
    cluster.add_pod("a", "gpu-1", {"nvidia.com/mig-1g.10gb": 1}, namespace="ml")
    cluster.add_pod("b", None, {"nvidia.com/mig-1g.10gb": 1})
    with connect(cluster.kubeconfig, None) as api:
        one, two, three = find_nodes(api)
        assert (one.wanted, one.state, len(one.gpus)) == ("all-1g.10gb", "success", 2)
        assert one.node.allocatable == {"nvidia.com/mig-1g.10gb": 14}
        assert "all-balanced" in one.layouts
        assert two.status is not None
        assert (two.status.state, two.status.message, two.state) == ("failed", "why", "failed")
        assert two.node.allocatable["nvidia.com/gpu"] == 1
        assert (three.wanted, three.status, three.node.unschedulable) == ("", None, True)
        assert [str(pod) for pod in find_pods(api, "gpu-1")] == ["ml/a"]
        assert [str(pod) for pod in find_pods(api)] == ["default/b", "ml/a"]
