"""The reset command: exactly the GPUs that need it, and refusals in words that help."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.drm import nvidia_drm
from mig_manager.host.reset import reset_gpus
from mig_manager.layouts.layout import GpuIdentity


def gpu(index: int) -> GpuIdentity:
    return GpuIdentity(index, f"GPU-{index}", f"00000000:0{index}:00.0", "NVIDIA A30", 0x20B710DE, 0, True)


def shell(script: str) -> list[str]:
    return ["sh", "-c", script, "reset", "{gpus}"]


def test_one_command_names_exactly_the_given_gpus(tmp_path: Path) -> None:
    said = tmp_path / "said"
    command = [*shell(f'echo "$1 $2" >> {said}'), "{addresses}"]
    reset_gpus(command, [gpu(1), gpu(3)], root=None, timeout_s=10)
    assert said.read_text() == "GPU-1,GPU-3 0000:01:00.0,0000:03:00.0\n"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (
            "GPU Reset couldn't run because GPU 00000000:07:00.0 is in use by another client",
            Reason.GPU_IN_USE,
        ),
        ("GPU 00000000:07:00.0 is currently being used by one or more other processes", Reason.GPU_IN_USE),
        ("Resetting GPU 00000000:07:00.0 is not supported.", Reason.RESET_NOT_SUPPORTED),
        (
            "GPU Reset couldn't run because GPU 00000000:01:00.0 is the primary GPU.",
            Reason.RESET_NOT_SUPPORTED,
        ),
        ("GPU 00000000:07:00.0: reset failed. Please reboot the system.", Reason.REBOOT_REQUIRED),
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
    with pytest.raises(MigManagerError, match=r"GPU 2 did not end within 0\.2 s") as refused:
        reset_gpus(
            [sys.executable, "-c", "import time; time.sleep(3600)"], [gpu(2)], root=None, timeout_s=0.2
        )
    assert refused.value.reason is Reason.NVML_ERROR


def test_a_missing_command_is_named() -> None:
    with pytest.raises(MigManagerError, match=r"could not be started: No such file.*/no/nvidia-smi"):
        reset_gpus(["/no/nvidia-smi", "-i", "{gpus}"], [gpu(0)], root=None, timeout_s=1)


def test_the_command_runs_inside_the_driver_root(tmp_path: Path) -> None:
    with pytest.raises(MigManagerError) as refused:
        reset_gpus(["nvidia-smi", "-i", "{gpus}"], [gpu(0)], root=tmp_path, timeout_s=10)
    assert f"chroot {tmp_path} nvidia-smi -i GPU-0" in refused.value.message


TOGETHER = (
    "The following GPUs are connected by NVLink and must be reset in the same command:"
    " GPU 00000000:03:00.0 GPU 0000:01:00.0 GPU 00000000:02:00.0"
)


def linked(tmp_path: Path, words: str = TOGETHER) -> list[str]:
    """A command that resets GPU 1 only with 2 and 3, and writes down what it was asked."""
    return shell(
        f'echo "$1" >> {tmp_path}/asked; case $1 in *,*,*) exit 0;; esac; echo {shlex.quote(words)}; exit 255'
    )


def test_gpus_that_the_platform_links_are_reset_together_if_all_may_be(tmp_path: Path) -> None:
    asked: list[Sequence[str]] = []

    def join(addresses: Sequence[str]) -> list[GpuIdentity]:
        asked.append(addresses)
        return [gpu(2), gpu(3)]

    reset_gpus(linked(tmp_path), [gpu(1)], root=None, timeout_s=10, join=join)
    assert asked == [("00000000:03:00.0", "00000000:02:00.0")]
    assert (tmp_path / "asked").read_text() == "GPU-1\nGPU-1,GPU-2,GPU-3\n"


def test_gpus_that_may_not_join_stop_the_reset(tmp_path: Path) -> None:
    def join(addresses: Sequence[str]) -> list[GpuIdentity]:
        raise MigManagerError(Reason.GPU_IN_USE, "GPU 2 runs a job.")

    with pytest.raises(MigManagerError, match="GPU 2 runs a job"):
        reset_gpus(linked(tmp_path), [gpu(1)], root=None, timeout_s=10, join=join)
    assert (tmp_path / "asked").read_text() == "GPU-1\n"
    with pytest.raises(MigManagerError, match="must be reset in the same command"):
        reset_gpus(linked(tmp_path), [gpu(1)], root=None, timeout_s=10)


def test_a_refusal_that_names_other_gpus_for_another_reason_asks_nobody(tmp_path: Path) -> None:
    def join(addresses: Sequence[str]) -> list[GpuIdentity]:
        raise AssertionError

    words = "GPU 00000000:02:00.0: In use by another client"
    with pytest.raises(MigManagerError, match="In use by another client"):
        reset_gpus(linked(tmp_path, words), [gpu(1)], root=None, timeout_s=10, join=join)


@pytest.mark.parametrize(
    ("refcnt", "modeset", "told"),
    [
        ("2", "N", "(2 users)"),
        ("0", "Y", "(mode setting on)"),
        ("1", "Y", "(1 user, mode setting on)"),
        ("0", "N", ""),
        (None, None, ""),
    ],
)
def test_nvidia_drm_is_named_only_where_it_keeps_gpus_open(
    tmp_path: Path, refcnt: str | None, modeset: str | None, told: str
) -> None:
    module = tmp_path / "module/nvidia_drm"
    (module / "parameters").mkdir(parents=True)
    if refcnt is not None and modeset is not None:
        (module / "refcnt").write_text(f"{refcnt}\n")
        (module / "parameters/modeset").write_text(f"{modeset}\n")
    assert told in nvidia_drm(tmp_path)
    assert bool(told) == bool(nvidia_drm(tmp_path))
    with pytest.raises(MigManagerError) as refused:
        reset_gpus(shell("echo in use; exit 1"), [gpu(0)], root=None, timeout_s=10, sys=tmp_path)
    assert refused.value.message.endswith("try again." if told else "GPU-0)")
