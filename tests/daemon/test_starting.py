"""Starting where something is missing: the daemon says what, waits for what may come, and then works."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mig_manager.daemon.settings import Settings, SettingsError, environment_name, load_settings
from mig_manager.daemon.usage import misspelt
from mig_manager.simulation.resources import NODES
from tests.daemon.conftest import MakeNode
from tests.daemon.node import PATIENCE, GpuNode

BAD_SETTINGS = [
    ({"NODE_NAME": ""}, "NODE_NAME is not set"),
    ({"NODE_NAME": " "}, "NODE_NAME: ' ' does not fit: the name of a Node is wanted"),
    ({"NODE_NAME": "GPU-1"}, "NODE_NAME: 'GPU-1' does not fit: the name of a Node is wanted"),
    ({"NODE_NAME": "gpu-1\n"}, "NODE_NAME: 'gpu-1\\n' does not fit: the name of a Node is wanted"),
    ({"NODE_NAME": "gpu_1"}, "NODE_NAME: 'gpu_1' does not fit: the name of a Node is wanted"),
    ({"NODE_NAME": "$(NODE_NAME)"}, "NODE_NAME: '$(NODE_NAME)' does not fit: the name of a Node is wanted"),
    ({"NODE_NAME": "a" * 254}, "NODE_NAME: 'aaaa"),
    ({"MIG_MANAGER_DRAIN_MODE": "force"}, "MIG_MANAGER_DRAIN_MODE: 'force' does not fit"),
    (
        {"MIG_MANAGER_DRAIN_MODE": "evct"},
        "MIG_MANAGER_DRAIN_MODE: 'evct' does not fit: Input should be 'evict', 'wait', 'delete' or 'off'; "
        "did you mean evict?",
    ),
    ({"WITH_REBOOT": "maybe"}, "WITH_REBOOT: 'maybe' does not fit: true or false is wanted"),
    ({"MIG_MANAGER_DRAIN_TIMEOUT": "-1"}, "MIG_MANAGER_DRAIN_TIMEOUT: '-1' does not fit"),
    ({"MIG_MANAGER_DRAIN_TIMEOUT": "soon"}, "MIG_MANAGER_DRAIN_TIMEOUT: 'soon' does not fit"),
    (
        {"MIG_MANAGER_RESET_COMMAND": "nvidia-smi -r"},
        "MIG_MANAGER_RESET_COMMAND: 'nvidia-smi -r' does not fit",
    ),
    ({"MIG_MANAGER_GPU_RESOURCES": "{}"}, "MIG_MANAGER_GPU_RESOURCES"),
]


@pytest.mark.parametrize(("settings", "message"), BAD_SETTINGS)
def test_a_setting_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str
) -> None:
    for name, value in {"NODE_NAME": "gpu-1", **settings}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsError) as error:
        load_settings()
    assert str(error.value).startswith(message)


def daemon(*arguments: str) -> subprocess.CompletedProcess[str]:
    """A daemon that has no settings."""
    command = [sys.executable, "-m", "mig_manager.daemon", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_help_lists_every_setting_with_its_default() -> None:
    told = daemon("--help")
    assert (told.returncode, told.stderr) == (0, "")
    listed = [line.strip() for line in told.stdout.splitlines()]
    assert "NODE_NAME" in listed
    assert "MIG_MANAGER_DRAIN_MODE=evict" in listed
    assert "MIG_MANAGER_PARALLEL_GPUS=true" in listed
    names = {line.partition("=")[0] for line in listed}
    assert [field for field in Settings.model_fields if environment_name(field) not in names] == []


def test_an_argument_is_refused_and_told_where_settings_belong() -> None:
    told = daemon("--config-file", "layouts.yaml")
    assert (told.returncode, told.stdout) == (2, "")
    assert "'--config-file'" in told.stderr
    assert "environment variables" in told.stderr


def test_a_misspelt_setting_is_told_and_what_kubernetes_sets_is_not() -> None:
    service = "MIG_MANAGER"
    others = [f"{service}_SERVICE_HOST", f"{service}_SERVICE_PORT", f"{service}_PORT"]
    others += [f"{service}_PORT_8080_TCP{end}" for end in ("", "_PROTO", "_PORT", "_ADDR")]
    known = ["NODE_NAME", "CONFIG_FILE", "MIG_MANAGER_DRAIN_MODE", "mig_manager_drain_mode", "HOME"]
    assert misspelt([*others, *known]) == []
    assert misspelt(["MIG_MANAGER_DRAINMODE"]) == [
        "the environment variable MIG_MANAGER_DRAINMODE is no setting and changes nothing; "
        "did you mean MIG_MANAGER_DRAIN_MODE?"
    ]


def test_settings_and_credentials_that_do_not_fit_end_it_with_one_message(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    broken = tmp_path / "broken"
    broken.write_text("clusters: {")
    for settings, message in (
        ({"MIG_MANAGER_DRAIN_TIMEOUT": "-1"}, "MIG_MANAGER_DRAIN_TIMEOUT: '-1' does not fit"),
        ({"KUBECONFIG": str(broken)}, f"No access to the API server by the kubeconfig {broken}"),
        ({"KUBECONFIG": "/nowhere/config"}, "No access to the API server by the kubeconfig /nowhere/config"),
    ):
        node.log.write_text("")
        status, said = node.run_to_end(**settings)
        assert status == 2, (settings, said)
        assert said.startswith(f"mig-manager: {message}"), said
        assert said.count("\n") == 1, said


@pytest.fixture
def asleep(make_node: MakeNode) -> GpuNode:
    """A node whose label is set before the daemon starts."""
    node = make_node()
    node.label("small")
    return node


def test_a_node_that_does_not_exist_yet_is_waited_for(asleep: GpuNode) -> None:
    before = asleep.cluster.node_object()
    asleep.cluster.store.delete(NODES, None, asleep.cluster.node)
    asleep.start()
    asleep.eventually(lambda: "There is no Node gpu-node-1" in asleep.logged())
    meta = {"name": asleep.cluster.node, "labels": before["metadata"]["labels"]}
    asleep.cluster.store.create(NODES, {"metadata": meta, "spec": before["spec"], "status": before["status"]})
    assert asleep.ended("small")["state"] == "success"
    assert asleep.logged().count("There is no Node") == 1


def test_an_api_server_that_is_down_is_waited_for_with_one_message(asleep: GpuNode) -> None:
    asleep.cluster.api.stop()
    asleep.start()
    asleep.eventually(lambda: "does not answer: Connection refused" in asleep.logged())
    asleep.cluster.api.start()
    assert asleep.ended("small")["state"] == "success"
    assert asleep.logged().count("Node gpu-node-1 cannot be followed") == 1
    assert "Traceback" not in asleep.logged()


def test_a_driver_that_is_not_loaded_is_looked_for_and_said_once(asleep: GpuNode) -> None:
    gpus = asleep.cluster.gpus
    gpus.unload_driver(force=True)
    asleep.start(MIG_MANAGER_DRIVER_RETRY="0.3")
    status = asleep.ended("small")
    assert (status["state"], status["reason"], status["phase"]) == ("failed", "NvmlError", "Validating")
    assert "driver" in status["message"]
    asleep.wait_event("NvmlError", "driver")
    gpus.record_calls()
    asleep.eventually(lambda: [call.function for call in gpus.calls()].count("nvmlInitWithFlags") >= 3)
    assert [reason for reason, _ in asleep.events()] == ["NvmlError"]
    assert asleep.logged().count("NvmlError") == 1
    assert not asleep.history.touched
    gpus.load_driver()
    asleep.wait(lambda: asleep.state == "success", "the driver to be found")


def test_a_driver_library_that_is_missing_is_looked_for(asleep: GpuNode, tmp_path: Path) -> None:
    asleep.start(
        MIG_MANAGER_DRIVER_RETRY="0.3",
        MIG_MANAGER_NVML_LOADER="",
        DRIVER_ROOT_CTR_PATH=str(tmp_path / "root"),
    )
    status = asleep.ended("small")
    assert (status["state"], status["reason"]) == ("failed", "NvmlError")
    assert "libnvidia-ml.so.1" in status["message"]
    assert asleep.daemon.poll() is None
    asleep.label(None)
    asleep.wait(lambda: asleep.state is None, "the state to go", PATIENCE)
    assert asleep.terminate() == 0
