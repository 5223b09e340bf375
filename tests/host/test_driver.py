"""The driver's library under a root."""

from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.host.driver import find_library


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
