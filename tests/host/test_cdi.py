"""The CDI specification is replaced as a whole, or stays as it was, with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mig_manager.host.cdi import COMMANDS, refresh_cdi

VALUES = {
    "host": "/host",
    "driver_root_here": "/driver-root",
    "driver_root": "/run/nvidia/driver",
    "dev_root_here": "/host",
    "dev_root": "/",
    "hook": "/usr/local/nvidia/toolkit/nvidia-cdi-hook",
}


def shell(script: str) -> tuple[str, ...]:
    return ("sh", "-c", script, "command", "{output}", "{driver_root}")


@pytest.fixture
def specification(tmp_path: Path) -> Path:
    path = tmp_path / "cdi/management.nvidia.com-gpu.yaml"
    path.parent.mkdir()
    path.write_text("old")
    return path


def test_the_commands_work_on_one_file_that_then_takes_the_place_of_the_old_one(specification: Path) -> None:
    seen = specification.parent / "seen"
    commands = [
        shell(f'echo "$1" >> {seen}; ls {specification.parent}/*.yaml >> {seen}; echo new > "$1"'),
        shell(f'echo "$1" >> {seen}; echo "root $2" >> "$1"'),
    ]
    assert refresh_cdi(commands, specification, VALUES, timeout_s=10) == ()
    assert specification.read_text() == "new\nroot /run/nvidia/driver\n"
    assert specification.stat().st_mode & 0o777 == 0o644
    first, listed, second = seen.read_text().splitlines()
    assert first == second
    assert listed == str(specification), "a runtime must not see a second specification of the same devices"
    assert Path(first).suffix == ".yaml", "nvidia-ctk takes the format from it"
    assert sorted(specification.parent.iterdir()) == [specification, seen]


@pytest.mark.parametrize(
    ("script", "timeout_s", "told"),
    [
        ('echo half > "$1"; echo cannot read NVML >&2; exit 1', 60, "exit status 1: cannot read NVML"),
        ('echo half > "$1"; exec sleep 3600', 0.5, r"did not end within 0.5 s"),
        (': > "$1"', 60, "wrote an empty one"),
        ("true", 60, "none of the commands wrote"),
    ],
)
def test_a_failure_leaves_the_old_one_and_says_why(
    specification: Path, script: str, timeout_s: float, told: str
) -> None:
    (problem,) = refresh_cdi([shell(script)], specification, VALUES, timeout_s=timeout_s)
    assert f"{specification} is as it was before" in problem
    assert told in problem
    assert specification.read_text() == "old"
    assert list(specification.parent.iterdir()) == [specification]


def test_a_command_that_is_not_there_and_a_directory_that_cannot_be_made_are_told(tmp_path: Path) -> None:
    target = tmp_path / "new/spec.yaml"
    (problem,) = refresh_cdi([("/no/nvidia-ctk", "{output}")], target, {}, timeout_s=1)
    assert "could not be started: No such file or directory: /no/nvidia-ctk" in problem
    (tmp_path / "file").write_text("")
    (problem,) = refresh_cdi([], tmp_path / "file/spec.yaml", {}, timeout_s=1)
    assert "No CDI specification can be written" in problem


TOOLKIT = """\
#!/bin/sh
echo "$0 $@" >> {log}
for each; do case $each in --output=*) echo made > "${{each#--output=}}";; esac; done
"""


def test_by_default_the_toolkit_of_the_host_is_asked_with_the_paths_of_the_host(
    specification: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, chroot = tmp_path / "log", tmp_path / "bin/chroot"
    chroot.parent.mkdir()
    chroot.write_text(TOOLKIT.format(log=log))
    chroot.chmod(0o755)
    monkeypatch.setenv("PATH", f"{chroot.parent}:/usr/bin:/bin")
    assert refresh_cdi(COMMANDS, specification, VALUES, timeout_s=10) == ()
    (asked,) = log.read_text().splitlines()
    assert asked.startswith(f"{chroot} /host nvidia-ctk cdi generate --mode=management ")
    assert "--driver-root=/run/nvidia/driver --dev-root=/ " in asked
    assert f"--nvidia-cdi-hook-path={VALUES['hook']} --output={specification.parent}/" in asked
    assert "{" not in asked
    assert specification.read_text() == "made\n"


ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may chroot")


@pytest.mark.parametrize(
    ("host", "told"),
    [
        pytest.param("/", "nvidia-ctk", marks=ROOT_ONLY, id="no toolkit"),
        pytest.param("/no/host", "/no/host", id="no mount"),
    ],
)
def test_a_host_without_toolkit_or_mount_is_told(specification: Path, host: str, told: str) -> None:
    (problem,) = refresh_cdi(COMMANDS, specification, {**VALUES, "host": host}, timeout_s=10)
    assert f"{specification} is as it was before: a command failed with exit status 12" in problem
    assert told in problem.partition(" (")[0]
    assert specification.read_text() == "old"
