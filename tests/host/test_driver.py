"""The driver's library under a root, and the reset command."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.driver import find_library, reset_gpus
from mig_manager.layouts.layout import GpuIdentity


def gpu(index: int) -> GpuIdentity:
    return GpuIdentity(index, f"GPU-{index}", f"00000000:0{index}:00.0", "NVIDIA A30", 0x20B710DE, 0, True)


def put(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\x7fELF")
    return path


@pytest.mark.parametrize(
    "directory",
    [
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/nvidia/current",
        "lib64",
        "lib/aarch64-linux-gnu",
    ],
)
def test_the_library_is_found_in_the_usual_directories(tmp_path: Path, directory: str) -> None:
    library = put(tmp_path / directory / "libnvidia-ml.so.1")
    assert find_library(tmp_path) == library


def test_links_are_followed_inside_the_driver_root(tmp_path: Path) -> None:
    library = put(tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15")
    (library.parent / "libnvidia-ml.so.1").symlink_to("/usr/lib/x86_64-linux-gnu/" + library.name)
    (tmp_path / "usr/lib64").symlink_to("/usr/lib/x86_64-linux-gnu")
    assert find_library(tmp_path) == library


def test_links_that_lead_up_stay_inside_the_driver_root(tmp_path: Path) -> None:
    library = put(tmp_path / "opt/libnvidia-ml.so.1")
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to("../../../../../opt/libnvidia-ml.so.1")
    assert find_library(tmp_path) == library


@pytest.mark.parametrize("target", ["libnvidia-ml.so.1", "/nowhere/libnvidia-ml.so.1"])
def test_a_link_that_leads_nowhere_is_no_library(tmp_path: Path, target: str) -> None:
    (tmp_path / "usr/lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to(target)
    assert find_library(tmp_path) is None


def test_without_a_driver_root_the_loader_finds_the_library() -> None:
    assert find_library(None) is None


def shell(script: str) -> list[str]:
    return ["sh", "-c", script, "reset", "{gpus}"]


def test_one_command_names_exactly_the_given_gpus(tmp_path: Path) -> None:
    said = tmp_path / "said"
    reset_gpus(shell(f'echo "$1" >> {said}'), [gpu(1), gpu(3)], root=None, timeout_s=10)
    assert said.read_text() == "GPU-1,GPU-3\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "GPU Reset couldn't run because GPU 00000000:07:00.0 is in use by another client",
            Reason.GPU_IN_USE,
        ),
        ("GPU 00000000:07:00.0 is currently being used by one or more other processes", Reason.GPU_IN_USE),
        ("Resetting GPU 00000000:07:00.0 is not supported.", Reason.RESET_NOT_SUPPORTED),
        ("Unable to reset this GPU: Unknown Error", Reason.NVML_ERROR),
    ],
)
def test_a_refused_reset_tells_the_commands_own_words(words: str, reason: Reason) -> None:
    with pytest.raises(MigManagerError) as refused:
        reset_gpus(shell(f"echo {shlex.quote(words)}; exit 3"), [gpu(0)], root=None, timeout_s=10)
    assert refused.value.reason is reason
    assert words in refused.value.message
    assert "GPU 0" in refused.value.message
    assert "exit status 3" in refused.value.message


def test_a_reset_that_does_not_end_is_stopped() -> None:
    begun = time.monotonic()
    with pytest.raises(MigManagerError, match=r"GPU 2 did not end within 0\.2 s") as refused:
        reset_gpus([sys.executable, "-c", "import time; time.sleep(60)"], [gpu(2)], root=None, timeout_s=0.2)
    assert refused.value.reason is Reason.NVML_ERROR
    assert time.monotonic() - begun < 10


def test_a_missing_command_is_named() -> None:
    with pytest.raises(MigManagerError, match=r"could not be started: No such file.*/no/nvidia-smi"):
        reset_gpus(["/no/nvidia-smi", "-i", "{gpus}"], [gpu(0)], root=None, timeout_s=1)


def test_the_command_runs_inside_the_driver_root(tmp_path: Path) -> None:
    with pytest.raises(MigManagerError) as refused:
        reset_gpus(["nvidia-smi", "-i", "{gpus}"], [gpu(0)], root=tmp_path, timeout_s=10)
    assert f"chroot {tmp_path} nvidia-smi -i GPU-0" in refused.value.message
