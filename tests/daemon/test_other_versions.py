"""What another version of the daemon has left on the Node, an older one or a newer one, is made sense of."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mig_manager.cluster.operands import PAUSED
from mig_manager.daemon.journal import Journal
from mig_manager.daemon.status import Phase, State, Status
from tests.daemon.conftest import MakeNode

LABEL = "nvidia.com/gpu.deploy.device-plugin"
OLD: dict[str, Any] = {"startedAt": "2026-01-01T00:00:00Z", "cordoned": True, "operands": {LABEL: "true"}}
"""A journal with nothing in it but what a journal cannot do without."""
REBOOT = {"layout": "small", "hash": "1", "boot": "b", "at": "2026-01-01T00:00:00Z", "for": "its modes"}
NEW: dict[str, Any] = {**OLD, "version": 99, "gpus": [], "powerLimits": {"GPU-1": 300}, "reboot": REBOOT}
SAID: dict[str, Any] = {"layout": "small", "state": "success", "phase": "Done"}


@pytest.mark.parametrize("written", [OLD, NEW], ids=["older", "newer"])
def test_a_journal_is_read_as_far_as_it_is_known(written: dict[str, Any]) -> None:
    journal = Journal.from_json(json.dumps(written))
    assert journal is not None
    assert (journal.cordoned, journal.operands) == (True, {LABEL: "true"})


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", "7", "{", '{"startedAt": "x"}', "[" * 100_000])
def test_what_is_no_journal_is_none(text: str) -> None:
    assert Journal.from_json(text) is None


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, True),
        ({"mood": "good"}, True),
        ({"state": "resting"}, False),
        ({"phase": "Meditating"}, False),
        ({"reason": "NewReason"}, False),
        ({"attempt": "third"}, False),
        ({"attempt": None}, False),
        ({"message": 7}, False),
        ({"reboot": {**REBOOT, "at": 7}}, False),
    ],
    ids=str,
)
def test_a_status_of_which_not_every_word_is_known_counts_as_none(
    changes: dict[str, Any], read: bool
) -> None:
    status = Status.from_json(json.dumps({**SAID, **changes}))
    assert status == (Status("small", State.SUCCESS, Phase.DONE) if read else None)


@pytest.mark.parametrize("written", [OLD, NEW], ids=["older", "newer"])
def test_what_another_version_has_begun_is_finished_and_put_back(
    make_node: MakeNode, written: dict[str, Any]
) -> None:
    node = make_node()
    node.patch_node(
        labels={LABEL: PAUSED, "nvidia.com/mig.config": "small", "nvidia.com/mig.config.state": "pending"},
        annotations={
            "mig-manager/journal": json.dumps(written),
            "mig-manager/status": '{"state": "resting"}',
        },
        unschedulable=True,
    )
    node.start()
    assert node.ended("small")["state"] == "success"
    assert not node.cordoned
    assert node.clients_run
    assert "mig-manager/journal" not in node.annotations
