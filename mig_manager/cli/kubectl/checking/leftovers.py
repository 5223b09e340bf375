"""Check of what a run that was broken off has left on a Node."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from mig_manager.cli.kubectl.checking.snapshot import Check, Snapshot, Verdict
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cluster.operands import PAUSED
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal
from mig_manager.daemon.status import State

_TAINT = "mig-manager/not-ready"
_FRESH = timedelta(minutes=2)
"""Where no pod of a daemon is seen, a run as young as that is taken to be under way."""
_RELEASE = "mig-manager release"


def leftovers(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """A journal without a daemon, with what it records; a state label that nobody keeps; a taint that should be off."""
    found = [*_journal(seen, node), *_taint(node), *_label(seen, node)]
    yield from found or [Check("leftovers", node.name, Verdict.OK, "nothing is left of a former run")]


def _journal(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    annotations = node.node.meta.annotations
    if JOURNAL_ANNOTATION not in annotations:
        return
    journal = Journal.from_annotations(annotations)
    if journal is None:
        text = f"the annotation {JOURNAL_ANNOTATION} cannot be read: nothing of what it recorded is put back"
        remove = f"kubectl annotate node {node.name} {JOURNAL_ANNOTATION}-"
        todo = f"see whether {node.name} has to be uncordoned, then: {remove}"
        yield Check("leftovers", node.name, Verdict.PROBLEM, text, todo)
        return
    left = what_is_left(node, journal)
    runs = seen.daemon_runs(node.name)
    active = node.status is not None and node.status.state in (State.PENDING, State.REBOOTING)
    logs = _logs(seen, node)
    if runs and active:
        yield Check("leftovers", node.name, Verdict.OK, f"a run is under way, which puts back: {left}")
    elif runs:
        text = f"no run is under way, but this is not put back yet: {left}"
        yield Check("leftovers", node.name, Verdict.WARNING, text, logs)
    elif runs is None and active and _young(seen.now, journal):
        text = f"a run is under way, or was just broken off; to be put back: {left}"
        yield Check("leftovers", node.name, Verdict.WARNING, text, f"kubectl mig status {node.name} -w")
    else:
        text = f"a run of {journal.started_at} was broken off, and no daemon is seen that would go on; left are: {left}"
        todo = f"start the daemon there again, which goes on from the journal; where it has been removed: {_RELEASE}"
        yield Check("leftovers", node.name, Verdict.PROBLEM, text, todo)


def what_is_left(node: GpuNode, journal: Journal) -> str:
    """What a journal says is to be put back and is not yet, in words."""
    parts = []
    if journal.cordoned and node.node.unschedulable:
        parts.append("a cordon that is ours")
    labels = node.node.meta.labels
    paused = [label for label in journal.operands if labels.get(label) == PAUSED]
    if paused:
        parts.append(f"paused GPU clients ({', '.join(label.rpartition('.')[2] for label in paused)})")
    if journal.services:
        parts.append(f"host units that may be stopped ({', '.join(journal.services)})")
    if journal.persistence:
        parts.append("persistence mode that may be off")
    if journal.drm:
        parts.append("the kernel module nvidia_drm that may not be loaded")
    parts.append("GPUs that may have neither the old layout nor the new one")
    return "; ".join(parts)


def _young(now: datetime, journal: Journal) -> bool:
    try:
        return now - datetime.fromisoformat(journal.started_at) < _FRESH
    except (ValueError, TypeError):
        return False


def _logs(seen: Snapshot, node: GpuNode) -> str:
    pods = seen.daemons_on(node.name)
    return f"kubectl -n {pods[0].namespace} logs {pods[0].name}" if pods else ""


def _taint(node: GpuNode) -> Iterator[Check]:
    if node.state == State.SUCCESS and any(taint.key == _TAINT for taint in node.node.taints):
        text = f"the start-up taint {_TAINT} is still there, although the state is success"
        todo = f"kubectl taint node {node.name} {_TAINT}-"
        yield Check("leftovers", node.name, Verdict.PROBLEM, text, todo)


def _label(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Where daemons run, but none here: nobody keeps what stands there true."""
    if node.state and seen.daemons and not seen.daemons_on(node.name) and not node.in_a_run:
        text = f"the state label says {node.state}, and no daemon is there to keep it true"
        todo = f"where the daemon is not meant to run any more: {_RELEASE}"
        yield Check("leftovers", node.name, Verdict.WARNING, text, todo)
