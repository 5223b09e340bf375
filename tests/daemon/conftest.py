from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mig_manager.simulation.control.plane import NotSimulatedError
from tests.daemon.node import GpuNode, node_lifetime

MakeNode = Callable[..., GpuNode]


@contextmanager
def _skipped_on_a_real_one() -> Iterator[None]:
    """Skip what needs the simulated API server where the tests run on a real one."""
    try:
        yield
    except NotSimulatedError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, Any, Any]:
    with _skipped_on_a_real_one():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, Any, Any]:
    with _skipped_on_a_real_one():
        return (yield)


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Makes simulated GPU nodes; the daemon does not run yet."""
    with ExitStack() as stack:

        def make(**options: Any) -> GpuNode:
            return stack.enter_context(GpuNode(tmp_path, **options))

        yield make


@pytest.fixture
def node(make_node: MakeNode) -> GpuNode:
    """A node with the daemon on it."""
    made = make_node()
    made.start()
    return made


@pytest.fixture(scope=node_lifetime)
def used_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuNode]:
    """A node that the tests of a module share; `made_as_new` undoes what each has done to it."""
    with GpuNode(tmp_path_factory.mktemp("node")) as made:
        yield made
