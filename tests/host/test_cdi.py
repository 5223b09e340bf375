"""The CDI specification is replaced as a whole, or stays as it was, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from mig_manager.host.cdi import COMMANDS, refresh_cdi

VALUES = {
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
    ("script", "told"),
    [
        ('echo half > "$1"; echo cannot read NVML >&2; exit 1', "exit status 1: cannot read NVML"),
        ('echo half > "$1"; sleep 60', r"did not end within 0.5 s"),
        (': > "$1"', "wrote an empty one"),
        ("true", "none of the commands wrote"),
    ],
)
def test_a_failure_leaves_the_old_one_and_says_why(specification: Path, script: str, told: str) -> None:
    (problem,) = refresh_cdi([shell(script)], specification, VALUES, timeout_s=0.5)
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


def test_the_default_commands_leave_nothing_unfilled(specification: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    program = tmp_path / "nvidia-ctk"
    program.write_text(
        f'#!/bin/sh\necho "$@" >> {log}\nfor a; do case $a in --output=*) echo x > ${{a#--output=}};; esac; done\n'
    )
    program.chmod(0o755)
    commands = [(str(program), *command[1:]) for command in COMMANDS]
    assert refresh_cdi(commands, specification, VALUES, timeout_s=10) == ()
    text = log.read_text()
    assert "{" not in text
    assert "--dev-root=/host" in text.splitlines()[0]
    assert "--from=/driver-root --to=/run/nvidia/driver" in text.splitlines()[2]
