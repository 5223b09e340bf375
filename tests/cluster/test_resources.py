"""Old numbers of the kubelet are not taken for new ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from mig_manager.cluster.objects import Node
from mig_manager.cluster.resources import advertised, not_fresh

READY = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def node(heartbeat: datetime | None = None, /, **allocatable: int) -> Node:
    names = {name.replace("__", ".").replace("_", "-"): str(count) for name, count in allocatable.items()}
    conditions = [{"type": "Ready", "lastHeartbeatTime": heartbeat.isoformat()}] if heartbeat else []
    return Node.from_json(
        {
            "metadata": {"name": "gpu-1"},
            "status": {
                "allocatable": {"cpu": "8", **{f"nvidia.com/{name}": count for name, count in names.items()}},
                "conditions": conditions,
            },
        }
    )


ONE_SECOND = timedelta(seconds=1)
WANTED = {"nvidia.com/mig-1g.10gb": 7, "nvidia.com/gpu": 0}


@pytest.mark.parametrize(
    ("seen", "changed", "ready", "problem"),
    [
        (node(mig_1g__10gb=7), True, None, None),
        (node(mig_1g__10gb=7, gpu=0, mig_3g__40gb=0), True, None, None),
        (node(mig_1g__10gb=7, gpu=1), True, READY, "advertises nvidia.com/gpu=1, nvidia.com/mig-1g.10gb=7"),
        (node(mig_1g__10gb=6), True, READY, "expected are nvidia.com/mig-1g.10gb=7"),
        (node(), True, READY, "advertises no GPU resource"),
        (node(READY + ONE_SECOND, mig_1g__10gb=7), False, READY, None),
        (node(READY, mig_1g__10gb=7), False, READY, "not written its status since"),
        (node(READY - ONE_SECOND, mig_1g__10gb=7), False, READY, "not written its status since"),
        (node(mig_1g__10gb=7), False, READY, "not written its status since"),
        (node(READY + ONE_SECOND, mig_1g__10gb=7), False, None, "no new device plugin pod is Ready"),
    ],
)
def test_allocatable_must_be_right_and_new(
    seen: Node, changed: bool, ready: datetime | None, problem: str | None
) -> None:
    found = not_fresh(seen, WANTED, changed=changed, plugin_ready=ready)
    assert found is None if problem is None else problem in (found or "")


def test_other_resources_do_not_count() -> None:
    assert advertised(node(gpu=2, rdma=4)) == {"nvidia.com/gpu": 2}
    assert not_fresh(node(gpu=2, rdma=4), {"nvidia.com/gpu": 2}, changed=True, plugin_ready=None) is None
