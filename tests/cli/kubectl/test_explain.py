"""`kubectl mig explain` against an API server."""

from __future__ import annotations

from typing import Any

import pytest

from mig_manager.daemon.layoutsfrom import LayoutsFrom
from mig_manager.daemon.status import LAYOUTS_ANNOTATION, LAYOUTS_FROM_ANNOTATION
from mig_manager.simulation.api.faults import Fault
from tests.cli.kubectl.cluster import Cluster
from tests.cli.kubectl.conftest import Mig
from tests.cli.kubectl.scenes import MIG

SMALL, LARGE = f"{MIG}1g.10gb", f"{MIG}3g.40gb"
OWN = """\
version: v1
mig-configs:
  one-large:
    - devices: [0]
      mig-enabled: true
      mig-devices: {3g.40gb: 1, 1g.10gb: 3}
"""


@pytest.fixture(autouse=True)
def nodes(cluster: Cluster) -> None:
    cluster.clear()
    cluster.add_node("gpu-1", own=OWN)
    cluster.add_pod("job", "gpu-1", {SMALL: 1}, namespace="ml")
    cluster.add_pod("waits", None, {LARGE: 1}, namespace="ml")


@pytest.fixture(scope="module", autouse=True)
def layouts(cluster: Cluster) -> None:
    cluster.add_config_map("gpu-system", "mig-manager-layouts", {"config.yaml": OWN})


def test_a_waiting_pod_is_explained_with_the_command_that_helps(mig: Mig) -> None:
    ended = mig("explain", "pod/waits", "-n", "ml")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.splitlines() == [
        "ml/waits is Pending and wants 1 nvidia.com/mig-3g.40gb.",
        "",
        "- No node advertises nvidia.com/mig-3g.40gb now; they advertise nvidia.com/mig-1g.10gb.",
        "",
        "What would serve it:",
        "- gpu-1 with layout one-large: 10 instances kept, 4 destroyed, 1 created; may evict ml/job",
        "    kubectl mig set gpu-1 one-large",
        "    kubectl label node gpu-1 nvidia.com/mig.config=one-large --overwrite",
    ]


def test_programs_get_the_same(mig: Mig) -> None:
    found = mig("explain", "pod", "waits", "-n", "ml", "-o", "json").json
    assert (found["pod"], found["wants"]) == ("ml/waits", {LARGE: 1})
    assert [each["cause"] for each in found["findings"]] == ["NotAdvertised"]
    assert mig("explain", "waits", "-n", "ml", "-o", "name").out == "node/gpu-1\n"
    best = found["remedies"][0]
    assert (best["node"], best["layout"], best["doubts"]) == ("gpu-1", "one-large", [])
    assert (best["evicts"], best["mayEvict"]) == ([], ["ml/job"])
    assert best["command"] == "kubectl mig set gpu-1 one-large"


DISCOVERED = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.count": "2"}
FROM_FILE = {LAYOUTS_FROM_ANNOTATION: LayoutsFrom(file="/etc/layouts.yaml").to_json()}


@pytest.mark.parametrize(
    ("node", "doubts"),
    [
        (
            {"layout": None, "labels": DISCOVERED},
            ["its GPUs are taken from the labels of GPU feature discovery"],
        ),
        (
            {"annotations": FROM_FILE},
            [
                "its layouts are taken to be those of its hardware "
                "(/etc/layouts.yaml on the node, which cannot be read from here)",
                "that name may have another meaning in /etc/layouts.yaml",
            ],
        ),
    ],
    ids=["the daemon has said nothing yet", "a file of the node itself"],
)
def test_what_is_assumed_is_said(cluster: Cluster, mig: Mig, node: dict[str, Any], doubts: list[str]) -> None:
    cluster.clear()
    cluster.add_node("gpu-1", **node)
    cluster.add_pod("waits", None, {LARGE: 1}, namespace="ml")
    (remedy,) = mig("explain", "waits", "-n", "ml", "-o", "json").json["remedies"]
    assert (remedy["node"], remedy["doubts"]) == ("gpu-1", doubts)


def test_no_layout_is_proposed_where_the_daemon_takes_none(cluster: Cluster, mig: Mig) -> None:
    cluster.clear()
    broken = LayoutsFrom(config_map="a/layouts", key="file").to_json()
    cluster.add_config_map("a", "layouts", {"file": "version: v1\nmig-configs: [nonsense"})
    cluster.add_node("gpu-1", annotations={LAYOUTS_FROM_ANNOTATION: broken, LAYOUTS_ANNOTATION: "[]"})
    cluster.add_pod("waits", None, {LARGE: 1}, namespace="ml")
    told = mig("explain", "waits", "-n", "ml").out
    assert told.endswith("No layout can be set on gpu-1 now; kubectl mig layouts gpu-1 says why.\n"), told


def test_who_may_only_read_the_own_pods_still_gets_an_answer(cluster: Cluster, mig: Mig) -> None:
    cluster.server.faults.add(Fault("GET", r"^/api/v1/(nodes|pods|configmaps)", status=403, times=None))
    ended = mig("explain", "waits", "-n", "ml")
    assert ended.code == 0
    assert "You may not list Nodes" in ended.out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["pod/wait", "-n", "ml"], 2, "there is no pod 'wait' in namespace 'ml'; did you mean waits?"),
        (["waits"], 2, "there is no pod 'waits' in namespace 'default'; there is no pod in 'default'"),
        (
            ["pod/trainer", "-n", "ml"],
            2,
            "there is no pod 'trainer' in namespace 'ml'; did you mean trainer-5d8f-x?",
        ),
        (["deploy/waits"], 2, "only pods are explained, as in pod/waits"),
        (["ml/waits"], 2, "or pod/waits -n ml, if that is its namespace"),
        (["a", "b", "c"], 2, "one pod is explained at a time"),
    ],
)
def test_a_pod_that_is_not_there_is_one_clear_error(
    cluster: Cluster, mig: Mig, words: list[str], code: int, says: str
) -> None:
    cluster.add_pod("trainer-5d8f-x", None, {LARGE: 1}, namespace="ml")
    ended = mig("explain", *words)
    assert (ended.code, ended.out) == (code, "")
    assert says in ended.err


def test_a_refusal_of_the_pod_itself_is_the_end(cluster: Cluster, mig: Mig) -> None:
    cluster.server.faults.add(Fault("GET", r"^/api/v1/namespaces/ml/pods/waits", status=403))
    ended = mig("explain", "waits", "-n", "ml")
    assert (ended.code, ended.out) == (3, "")
