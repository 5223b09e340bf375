"""Sets of rules that the daemon has to live with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mig_manager.simulation.api.grants import Grant
from tests.daemon.node import OPERATOR

Rule = dict[str, Any]


def rule(verbs: str, *resources: str, group: str = "", names: Sequence[str] = ()) -> Rule:
    """`verbs` are separated by spaces."""
    made: Rule = {"apiGroups": [group], "resources": list(resources), "verbs": verbs.split()}
    return {**made, "resourceNames": list(names)} if names else made


NODES = rule("get list watch update patch", "nodes")

GPU_OPERATOR = (
    Grant([NODES]),
    Grant(
        [
            rule("use", "securitycontextconstraints", group="security.openshift.io", names=["privileged"]),
            rule("*", "pods", "nodes"),
        ],
        namespace=OPERATOR,
    ),
)
"""What the GPU Operator gives to its mig-manager: NVIDIA/gpu-operator, assets/state-mig-manager/0200_role.yaml and
0210_clusterrole.yaml."""
