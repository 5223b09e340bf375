"""What Nodes say is read as the daemon writes it."""

from __future__ import annotations

from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from mig_manager.cli.kubectl.cluster import connect, find_nodes, find_pods
from mig_manager.cli.kubectl.main import command_line
from mig_manager.daemon.status import State
from tests.cli.kubectl.cluster import Cluster
from tests.cli.kubectl.conftest import Mig


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


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        ("hello world", "it is none; a kubeconfig has clusters"),
        ("- 1\n", "it is none; a kubeconfig has clusters"),
        ("a: [b\n", "while parsing a flow sequence"),
        ("\udcff\udcfe\0", "can't decode byte 0xff"),
        ("contexts: 5\ncurrent-context: a\n", "it is none; a kubeconfig has clusters"),
        ("contexts: [{name: a}]\ncurrent-context: a\n", "Expected key context"),
        ("contexts: [{name: a, context: {}}]\ncurrent-context: b\n", "Expected object with name b"),
    ],
)
def test_a_kubeconfig_that_makes_no_sense_is_bad_input(
    mig: Mig, tmp_path: Path, text: str, told: str
) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(text, encoding="utf-8", errors="surrogateescape")
    ended = mig("status", "--kubeconfig", file)
    assert (ended.code, told in ended.err, str(file) in ended.err) == (2, True, True), ended.err


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_full_disk_is_no_mistake_of_ours(
    mig: Mig, cluster: Cluster, capsys: pytest.CaptureFixture[str], output: str
) -> None:
    cluster.clear()
    cluster.add_node("gpu-1")
    with Path("/dev/full").open("w", encoding="utf-8") as full, redirect_stdout(full):
        code = command_line(["status", "-o", output, "--kubeconfig", str(cluster.kubeconfig)])
    assert (code, capsys.readouterr().err) == (
        3,
        "error: stdout cannot be written: No space left on device\n",
    )


def test_a_kubeconfig_that_is_no_file_is_bad_input(mig: Mig, tmp_path: Path) -> None:
    absent = mig("status", "--kubeconfig", tmp_path / "absent")
    assert (absent.code, absent.err) == (2, f"error: there is no kubeconfig {tmp_path / 'absent'}\n")
    folder = mig("status", "--kubeconfig", tmp_path)
    assert (folder.code, "Is a directory" in folder.err) == (2, True), folder.err
