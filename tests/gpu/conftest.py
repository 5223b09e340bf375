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
        """`host_files=True`: with proc, dev and sys, which few tests need."""
        directory = tmp_path / f"node{len(nodes)}"
        directory.mkdir()
        host_files = options.pop("host_files", "")
        if host_files is True:
            host_files = str(directory / "host")
        nodes.append(Node(directory, gpus, host_files=host_files, **options))
        return nodes[-1]

    yield make
    for node in nodes:
        node.worker.close()
