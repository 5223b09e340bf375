"""`kubectl mig show`: the picture, and what is said of it."""

from __future__ import annotations

import pytest

from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.gpus import facts_in
from mig_manager.daemon.status import GPUS_ANNOTATION
from mig_manager.simulation.api.faults import Fault
from tests.cli.kubectl.cluster import Cluster
from tests.cli.kubectl.conftest import Mig


@pytest.fixture(autouse=True)
def clean(cluster: Cluster) -> None:
    cluster.clear()


PICTURE = """\
gpu-1  layout all-balanced, state success, strategy mixed

GPUs 0-1  NVIDIA A100-SXM4-80GB
  MIG on
            0       1       2       3       4       5       6       7
        +---------------+-------+-------+-------------------------------+
now     |    2g.20gb    |1g.10gb|1g.10gb|            3g.40gb            |
        |     free      |in use?|in use?|            in use             |
        +---------------+-------+-------+-------------------------------+

RESOURCE                IN USE    PODS
nvidia.com/mig-1g.10gb  1 of 4    ml/one
nvidia.com/mig-2g.20gb  0 of 2    -
nvidia.com/mig-3g.40gb  2 of 2    ml/both (2)
Which device of a type each pod has, only the kubelet of the node knows.
"""


def test_gpus_are_drawn_with_what_is_known_of_their_use(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1", layout="all-balanced")
    cluster.add_pod("both", "gpu-1", {"nvidia.com/mig-3g.40gb": 2}, namespace="ml")
    cluster.add_pod("one", "gpu-1", {"nvidia.com/mig-1g.10gb": 1}, namespace="ml")
    cluster.add_pod("elsewhere", "gpu-2", {"nvidia.com/mig-1g.10gb": 1}, namespace="ml")
    cluster.add_pod("over", "gpu-1", {"nvidia.com/mig-1g.10gb": 1}, namespace="ml", phase="Failed")
    shown = mig("show", "gpu-1")
    assert (shown.code, shown.out, shown.err) == (0, PICTURE, "")
    assert mig("show", "gpu-1", "-o", "name").out == "node/gpu-1\n"
    heads = [line for line in mig("show", "gpu-1", "-o", "wide").out.splitlines() if line.startswith("GPU")]
    assert [(head.split()[1], head.split()[-1]) for head in heads] == [
        ("0", "00000000:07:00.0"),
        ("1", "00000000:08:00.0"),
    ]
    first, second, third, fourth = mig("show", "gpu-1", "-o", "json").json["gpus"][0]["instances"]
    assert [one["devices"][0]["use"] for one in (first, second, third, fourth)] == [
        "free",
        "unknown",
        "unknown",
        "used",
    ]
    assert second["devices"][0]["possiblePods"] == [{"namespace": "ml", "name": "one"}]
    assert fourth["devices"][0]["pods"] == [{"namespace": "ml", "name": "both"}]


def test_what_is_free_and_what_would_fit_there_is_told(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1", "1xA100-SXM4-80GB", layout="all-2g.20gb")
    assert "  free     memory slices 6-7; room for 1 x 1g.20gb or 1 x 1g.10gb\n" in mig("show", "gpu-1").out
    free = mig("show", "gpu-1", "-o", "json").json["gpus"][0]["free"]
    assert free == {"memorySlices": [6, 7], "room": {"1g.20gb": 1, "1g.10gb": 1}}


def test_gpus_without_mig_or_with_mig_off_are_given_away_as_a_whole(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1", "1xH100-80GB-HBM3,1xT4", layout="all-disabled")
    cluster.add_pod("all", "gpu-1", {"nvidia.com/gpu": 2})
    out = mig("show", "gpu-1").out
    assert "MIG off; as a whole in use\n" in out
    assert "no MIG; as a whole in use\n" in out


def test_an_annotation_of_an_older_version_is_read_and_what_it_lacks_is_told(
    cluster: Cluster, mig: Mig
) -> None:
    cluster.add_node("gpu-1", layout="all-balanced")
    annotations = cluster.node("gpu-1")["metadata"]["annotations"]
    older = facts_in(annotations[GPUS_ANNOTATION])
    cluster.change_node("gpu-1", NodeChange(annotations={GPUS_ANNOTATION: older}))
    shown = mig("show", "gpu-1")
    assert "not told by this node: PCI ids" in shown.out
    assert "3g.40gb" in shown.out


@pytest.mark.parametrize(
    ("text", "words"), [(None, "has no annotation mig-manager/gpus"), ('{"a": 1}', "cannot be read: ")]
)
def test_a_node_that_tells_nothing_is_one_error(
    cluster: Cluster, mig: Mig, text: str | None, words: str
) -> None:
    cluster.add_node("gpu-1")
    cluster.change_node("gpu-1", NodeChange(annotations={GPUS_ANNOTATION: text}))
    shown = mig("show", "gpu-1")
    assert (shown.code, shown.out) == (2, "")
    assert words in shown.err
    assert len(shown.err.splitlines()) == 1


def test_pods_that_may_not_be_read_are_an_error_of_the_api(cluster: Cluster, mig: Mig) -> None:
    cluster.add_node("gpu-1")
    cluster.server.faults.add(Fault("GET", "/pods", status=403, times=None))
    shown = mig("show", "gpu-1")
    assert shown.code == 3
    assert "/api/v1/pods" in shown.err
