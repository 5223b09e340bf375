from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.drm import DrmModule


def module(directory: Path, modprobe: str, noted: list[str]) -> DrmModule:
    """The module, loaded, with a command that notes how it is called, and then runs `modprobe` in a shell."""
    (directory / "module/nvidia_drm").mkdir(parents=True)
    script = f'echo "$@" >> {directory}/calls; {modprobe}'
    command = ("sh", "-c", script, "modprobe")
    return DrmModule(command, sys=directory, root=None, note=lambda: noted.append(calls(directory)))


def calls(directory: Path) -> str:
    path = directory / "calls"
    return path.read_text() if path.exists() else ""


def test_it_is_noted_then_unloaded_and_loaded_again_whatever_happens(tmp_path: Path) -> None:
    noted: list[str] = []
    drm = module(tmp_path, "true", noted)

    def reset() -> None:
        with drm.unloaded():
            raise KeyError(calls(tmp_path))

    with pytest.raises(KeyError, match="-r nvidia_drm"):
        reset()
    assert calls(tmp_path) == "-r nvidia_drm\nnvidia_drm\n"
    assert noted == [""]
    drm.bring_back()
    assert drm.problem == ""
    assert calls(tmp_path) == "-r nvidia_drm\nnvidia_drm\n"


def test_where_it_is_not_loaded_nothing_happens(tmp_path: Path) -> None:
    drm = DrmModule(("false",), sys=tmp_path, root=None, note=lambda: pytest.fail("nothing to note"))
    with drm.unloaded():
        pass
    drm.bring_back()
    assert drm.problem == ""


def test_a_module_that_cannot_be_unloaded_is_in_use_and_left_alone(tmp_path: Path) -> None:
    drm = module(tmp_path, "echo is in use >&2; exit 1", [])
    with pytest.raises(MigManagerError, match="nvidia_drm: is in use") as refused, drm.unloaded():
        pytest.fail("it is still there")
    assert refused.value.reason is Reason.GPU_IN_USE
    drm.bring_back()
    assert calls(tmp_path) == "-r nvidia_drm\n"


def test_one_that_an_earlier_process_unloaded_is_loaded_once_and_told_if_that_fails(tmp_path: Path) -> None:
    drm = module(tmp_path, "echo not found; exit 1", [])
    drm.adopt()
    drm.bring_back()
    drm.bring_back()
    assert calls(tmp_path) == "nvidia_drm\n"
    assert drm.problem.endswith("not found")
