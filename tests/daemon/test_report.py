"""What a run says on the Node, where something between us and the Node changes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mig_manager.cluster.client import Api
from mig_manager.cluster.events import EventRecorder
from mig_manager.cluster.node import NodeClient
from mig_manager.cluster.wait import Deadline
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.report import Report
from mig_manager.daemon.status import Outcome, Phase
from mig_manager.errors import MigManagerError, Reason
from mig_manager.planning.state import Inventory
from mig_manager.simulation.api.admission import Admission
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.resources import NODES
from mig_manager.simulation.store import MemoryStore

JOURNAL = Journal(started_at="2026-12-01T00:00:00Z", cordoned=True, allocatable={})


class Webhook:
    """Takes from every Node what it is told to, before it is stored."""

    def __init__(self) -> None:
        self.journal = self.cordon = False

    def __call__(self, admission: Admission) -> None:
        if admission.new is None or admission.call.resource != NODES:
            return
        if self.journal:
            admission.new["metadata"].get("annotations", {}).pop(JOURNAL_ANNOTATION, None)
        if self.cordon:
            admission.new["spec"].pop("unschedulable", None)


@pytest.fixture
def webhook() -> Webhook:
    return Webhook()


@pytest.fixture
def client(tmp_path: Path, webhook: Webhook) -> Iterator[NodeClient]:
    store = MemoryStore()
    store.create(NODES, {"metadata": {"name": "gpu-1"}, "spec": {}})
    with ExitStack() as stack:
        server = stack.enter_context(ApiServer(store, admit=webhook))
        server.write_kubeconfig(tmp_path / "kubeconfig")
        yield NodeClient(stack.enter_context(Api.connect(tmp_path / "kubeconfig")), "gpu-1")


@pytest.mark.parametrize(
    ("taken", "words"), [("journal", "annotation mig-manager/journal"), ("cordon", "the cordon")]
)
def test_a_cordon_or_a_journal_that_does_not_stay_ends_the_run_and_leaves_neither(
    client: NodeClient, webhook: Webhook, taken: str, words: str
) -> None:
    setattr(webhook, taken, True)
    report = Report(client, EventRecorder(client.api, "gpu-1"), client.get().meta, layout="small")
    report.change(Phase.CORDONING, lambda node: report.cordon(node, JOURNAL))
    with pytest.raises(MigManagerError, match=f"{words} did not stay") as refused:
        report.require_reserved()
    assert refused.value.reason is Reason.API_ERROR
    report.conclude(Outcome.of(refused.value, Phase.CORDONING), Inventory("", ()))
    node = client.get(deadline=Deadline.after(10))
    assert not node.unschedulable
    assert JOURNAL_ANNOTATION not in node.meta.annotations
    assert node.meta.labels["nvidia.com/mig.config.state"] == "failed"


def test_a_cordon_and_a_journal_that_stay_are_enough(client: NodeClient) -> None:
    report = Report(client, EventRecorder(client.api, "gpu-1"), client.get().meta, layout="small")
    report.change(Phase.CORDONING, lambda node: report.cordon(node, JOURNAL))
    report.require_reserved()
    assert client.get().unschedulable
