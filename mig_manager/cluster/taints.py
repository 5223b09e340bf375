"""The start-up taint: keeps pods away from a new node until its GPUs are as they shall be."""

from __future__ import annotations

from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.objects import Node


def without_taint(node: Node, key: str) -> NodeChange:
    """The change that takes every taint with that key off, and no other; empty where there is none."""
    left = tuple(taint for taint in node.taints if taint.key != key)
    return NodeChange() if left == node.taints else NodeChange(taints=left)
