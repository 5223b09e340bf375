"""Device nodes for MIG capabilities: what is missing is created, what is there stays."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from mig_manager.host.devicenodes import create_capability_nodes

MAJOR = 237
GI, CI = "gpu0/mig/gi1", "gpu0/mig/gi1/ci0"


def can_make_devices() -> bool:
    """Root in a container may lack the right as well."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            os.mknod(Path(directory, "node"), 0o20600, os.makedev(MAJOR, 1))
        except PermissionError:
            return False
    return True


needs_devices = pytest.mark.skipif(not can_make_devices(), reason="device nodes cannot be made here")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    proc = tmp_path / "proc"
    capability(proc, GI, 12)
    capability(proc, CI, 13)
    capability(proc, "gpu2/mig/gi9", 354, mode=256)
    (proc / "devices").write_text(f"Character devices:\n  1 mem\n{MAJOR} nvidia-caps\n\nBlock devices:\n")
    return proc


def capability(proc: Path, name: str, minor: int, *, mode: int = 292, modify: int = 1) -> Path:
    file = proc / "driver/nvidia/capabilities" / name / "access"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: {mode}\nDeviceFileModify: {modify}\n")
    return file


def nodes(dev: Path) -> dict[str, tuple[int, int]]:
    """Minor number and permissions by name."""
    found = {path.name: path.stat() for path in (dev / "nvidia-caps").iterdir()}
    assert all(stat.S_ISCHR(each.st_mode) and os.major(each.st_rdev) == MAJOR for each in found.values())
    return {name: (os.minor(each.st_rdev), stat.S_IMODE(each.st_mode)) for name, each in found.items()}


@needs_devices
def test_missing_nodes_are_created_with_the_drivers_numbers_and_modes(proc: Path, tmp_path: Path) -> None:
    dev = tmp_path / "host/dev"
    old = os.umask(0o077)
    try:
        first = create_capability_nodes(proc, dev)
    finally:
        os.umask(old)
    assert first.problems == ()
    assert [path.name for path in first.created] == ["nvidia-cap12", "nvidia-cap354", "nvidia-cap13"]
    expected = {"nvidia-cap12": (12, 0o444), "nvidia-cap13": (13, 0o444), "nvidia-cap354": (354, 0o400)}
    assert nodes(dev) == expected
    again = create_capability_nodes(proc, dev)
    assert (again.created, again.problems) == ((), ())


@needs_devices
def test_nothing_is_removed_and_a_wrong_node_is_told(proc: Path, tmp_path: Path) -> None:
    (tmp_path / "nvidia-caps").mkdir()
    os.mknod(tmp_path / "nvidia-caps/nvidia-cap999", 0o20444, os.makedev(MAJOR, 999))
    os.mknod(tmp_path / "nvidia-caps/nvidia-cap12", 0o20444, os.makedev(MAJOR + 1, 12))
    (tmp_path / "nvidia-caps/nvidia-cap13").write_text("a file")
    found = create_capability_nodes(proc, tmp_path)
    assert [path.name for path in found.created] == ["nvidia-cap354"]
    assert len(found.problems) == 2
    assert f"nvidia-cap12 for {GI} is not the device {MAJOR}:12" in found.problems[0]
    assert f"nvidia-cap13 for {CI} is not the device {MAJOR}:13" in found.problems[1]
    assert (tmp_path / "nvidia-caps/nvidia-cap999").exists()


@needs_devices
def test_nodes_that_the_driver_reserves_for_the_administrator_are_not_made(
    proc: Path, tmp_path: Path
) -> None:
    capability(proc, GI, 12, modify=0)
    capability(proc, "gpu0/mig/gi2", 21).write_text("DeviceFileMode: 292\n")
    found = create_capability_nodes(proc, tmp_path)
    assert sorted(path.name for path in found.created) == ["nvidia-cap13", "nvidia-cap354"]
    assert len(found.problems) == 1
    assert "gi2/access cannot be read: 'DeviceFileMinor'" in found.problems[0]


def test_what_cannot_be_created_is_a_problem_and_no_failure(proc: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "dev"
    blocked.write_text("no directory")
    found = create_capability_nodes(proc, blocked)
    assert found.created == ()
    assert len(found.problems) == 3
    assert f"{blocked}/nvidia-caps/nvidia-cap12 for {GI} cannot be created: " in found.problems[0]
    (proc / "devices").write_text("Character devices:\n195 nvidia\n")
    (problem,) = create_capability_nodes(proc, tmp_path / "other").problems
    assert "names no nvidia-caps" in problem


def test_without_capabilities_there_is_nothing_to_do(tmp_path: Path) -> None:
    assert create_capability_nodes(tmp_path / "proc", tmp_path / "dev").problems == ()
    assert not (tmp_path / "dev").exists()
