"""Checks of one Node: its daemon, the driver, the layout that is asked for, and how the last run went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from mig_manager.cli.kubectl.checking.snapshot import Check, Snapshot, Verdict
from mig_manager.cli.kubectl.cluster import GpuNode
from mig_manager.cli.kubectl.meaning import takes_no_layout
from mig_manager.daemon.status import CONFIG_LABEL, Phase, State, Status
from mig_manager.errors import Reason
from mig_manager.layouts.findings import clipped, hint
from mig_manager.layouts.suggest import nearest

LONG = timedelta(minutes=30)
"""A run that takes longer is worth a look; with the default settings a drain may take ten minutes."""
_MANY_RESTARTS = 5
_CAPABLE_LABEL = "nvidia.com/mig.capable"
_DRIVER_LABEL = "nvidia.com/cuda.driver-version.full"
_OLD_DRIVER_LABELS = [f"nvidia.com/cuda.driver.{part}" for part in ("major", "minor", "rev")]
_WAITING = (Phase.WAITING_FOR_SLOT, Phase.WAITING_FOR_WINDOW)
_LONGEST = 300


def without_mig(node: GpuNode) -> bool:
    """Whether GPU feature discovery says that no GPU there has MIG; the chart runs no daemon then."""
    return node.node.meta.labels.get(_CAPABLE_LABEL) == "false"


def daemon(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Its pod."""
    if not seen.daemons:
        return
    pods = seen.daemons_on(node.name)
    if not pods:
        where = seen.daemons[0]
        todo = f"kubectl -n {where.namespace} describe daemonset; compare its node affinity and tolerations"
        yield Check("daemon", node.name, Verdict.PROBLEM, "no pod of the daemon is on this node", todo)
        return
    if len(pods) > 1:
        names = ", ".join(map(str, pods))
        yield Check(
            "daemon", node.name, Verdict.PROBLEM, f"more than one daemon: {names}", "remove all but one"
        )
    for pod in pods:
        logs = f"kubectl -n {pod.namespace} logs {pod.name}"
        restarts = f", restarted {pod.restarts} times" if pod.restarts else ""
        if not pod.ready:
            why = f" ({pod.waiting})" if pod.waiting else ""
            previous = " --previous" if pod.restarts else ""
            yield Check(
                "daemon", node.name, Verdict.PROBLEM, f"{pod} is not ready{why}{restarts}", logs + previous
            )
        elif pod.restarts >= _MANY_RESTARTS:
            yield Check(
                "daemon", node.name, Verdict.WARNING, f"{pod} is ready{restarts}", f"{logs} --previous"
            )
        else:
            yield Check("daemon", node.name, Verdict.OK, f"{pod} is ready{restarts}")


def driver(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Whether the daemon could read the GPUs."""
    status = node.status
    labels = node.node.meta.labels
    older = ".".join(labels[name] for name in _OLD_DRIVER_LABELS if labels.get(name))
    version = labels.get(_DRIVER_LABEL) or older
    if status is not None and status.reason is Reason.NVML_ERROR and status.state is not State.SUCCESS:
        yield Check(
            "driver",
            node.name,
            Verdict.PROBLEM,
            _short(status.message or "the driver does not answer"),
            "see docs/troubleshooting.md#nvmlerror, and MIG_MANAGER driver settings in docs/settings.md",
        )
    elif node.gpus:
        models = Counter(str(gpu.get("model")) for gpu in node.gpus)
        words = ", ".join(f"{count}x {model}" for model, count in models.items())
        yield Check("driver", node.name, Verdict.OK, words + (f", driver {version}" if version else ""))
    else:
        text = "the daemon has not told of any GPU here" + (
            "; no layout is asked for" if not node.wanted else ""
        )
        yield Check("driver", node.name, Verdict.UNKNOWN, text)


def layout(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """Whether the label names a layout that there is."""
    wanted, listed = node.wanted, node.layouts
    if not wanted:
        yield Check("layout", node.name, Verdict.OK, "none is asked for")
    elif node.takes_no_layout:
        text = f"{clipped(wanted)} is asked for, and {takes_no_layout()}"
        yield Check(
            "layout", node.name, Verdict.PROBLEM, text, f"kubectl mig layouts {node.name}   # says why"
        )
    elif not listed:
        text = f"{wanted} is asked for; which layouts there are is not known"
        yield Check("layout", node.name, Verdict.UNKNOWN, text)
    elif wanted in listed:
        yield Check(
            "layout", node.name, Verdict.OK, f"{wanted} is one of {len(listed)} that the node can take"
        )
    else:
        near = nearest(wanted, listed)
        todo = f"kubectl label node {node.name} {CONFIG_LABEL}={near[0]} --overwrite" if near else ""
        yield Check(
            "layout",
            node.name,
            Verdict.PROBLEM,
            f"{clipped(wanted)} is none of the layouts that the node can take{hint(near)}",
            todo or f"kubectl mig layouts {node.name}",
        )


def state(seen: Snapshot, node: GpuNode) -> Iterator[Check]:
    """How the last run went, or how far the present one is."""
    status = node.status
    if status is None:
        if node.wanted:
            text = f"{node.wanted} is asked for, and no daemon has said a word about it"
            yield Check("state", node.name, Verdict.PROBLEM, text, "see the check 'daemon'")
        elif node.state:
            yield Check(
                "state",
                node.name,
                Verdict.WARNING,
                f"the label says {node.state}, and no status stands there",
            )
        else:
            yield Check("state", node.name, Verdict.OK, "nothing has been asked for yet")
        return
    yield _told(seen, node, status)
    if node.wanted and status.layout != node.wanted and status.state in (State.SUCCESS, State.FAILED):
        text = f"the label asks for {node.wanted}, and the status is still about {status.layout}"
        yield Check("state", node.name, Verdict.WARNING, text, f"kubectl mig status {node.name} -w")


def _told(seen: Snapshot, node: GpuNode, status: Status) -> Check:
    age = _age(seen.now, status.startedAt)
    since = f" for {_minutes(age)}" if age is not None else ""
    match status.state:
        case State.FAILED:
            again = f"; next attempt at {status.nextRetryAt}" if status.nextRetryAt else ""
            text = (
                f"{status.layout} failed: {status.reason}: {_short(status.message or '').rstrip('.')}{again}"
            )
            section = str(status.reason or "").lower()
            return Check("state", node.name, Verdict.PROBLEM, text, f"docs/troubleshooting.md#{section}")
        case State.PENDING | State.REBOOTING:
            text = f"{status.layout} is {status.state}{since}, phase {status.phase}"
            text += f": {_short(status.message)}" if status.message else ""
            late = age is not None and age > LONG and status.phase not in _WAITING
            verdict = Verdict.WARNING if late else Verdict.OK
            return Check(
                "state", node.name, verdict, text, f"kubectl mig status {node.name} -w" if late else ""
            )
    return Check("state", node.name, Verdict.OK, f"{status.layout} since {status.finishedAt or 'its start'}")


def _age(now: datetime, started: str | None) -> timedelta | None:
    try:
        return now - datetime.fromisoformat(started) if started else None
    except (ValueError, TypeError):
        return None


def _minutes(age: timedelta) -> str:
    seconds = max(int(age.total_seconds()), 0)
    return f"{seconds} s" if seconds < 120 else f"{seconds // 60} min"


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST else line[:_LONGEST] + "..."
