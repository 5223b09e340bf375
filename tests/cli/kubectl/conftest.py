from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from mig_manager.cli.kubectl.main import command_line
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.store import MemoryStore
from tests.cli.conftest import Ended
from tests.cli.kubectl.cluster import Cluster

Mig = Callable[..., Ended]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server without any Node yet, shared by the tests of a module; no daemon runs."""
    with ApiServer(MemoryStore()) as server:
        kubeconfig = tmp_path_factory.mktemp("kubectl") / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        yield Cluster(server, kubeconfig)


@pytest.fixture
def mig(cluster: Cluster, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Mig:
    """Run a command of `kubectl mig` against the module's cluster, as the console script does."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)

    def run(*arguments: object) -> Ended:
        words = [str(argument) for argument in arguments]
        if "--kubeconfig" not in words:
            words += ["--kubeconfig", str(cluster.kubeconfig)]
        capsys.readouterr()
        code = command_line(words)
        captured = capsys.readouterr()
        return Ended(code, captured.out, captured.err)

    return run


@pytest.fixture
def press_ctrl_c() -> Iterator[Callable[[], None]]:
    """Ctrl-C, for a thread that watches over a command; also where the tests run in the background and ignore it."""
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)
