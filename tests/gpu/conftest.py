from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.node import Node

MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    nodes: list[Node] = []

    def make(gpus: Any, **options: Any) -> Node:
        directory = tmp_path / f"node{len(nodes)}"
        directory.mkdir()
        nodes.append(Node(directory, gpus, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.worker.close()
