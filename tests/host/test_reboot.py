"""Which boot this is, and the command that asks for the next one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.reboot import boot_id, reboot


def test_the_boot_id_is_the_kernels(tmp_path: Path) -> None:
    file = tmp_path / "sys/kernel/random/boot_id"
    with pytest.raises(
        MigManagerError, match=re.escape(f"cannot be read: No such file or directory: {file}")
    ):
        boot_id(tmp_path)
    file.parent.mkdir(parents=True)
    file.write_text("0b3c5a5e-64d1-4c1c-a9a4-6a2f0f4d8c52\n")
    assert boot_id(tmp_path) == "0b3c5a5e-64d1-4c1c-a9a4-6a2f0f4d8c52"


def test_the_command_gets_the_place_of_the_hosts_root(tmp_path: Path) -> None:
    said = tmp_path / "said"
    reboot(["sh", "-c", f'echo "$1" > {said}', "reboot", "{host}"], host=tmp_path, timeout_s=10)
    assert said.read_text() == f"{tmp_path}\n"


@pytest.mark.parametrize(
    ("command", "timeout_s", "words"),
    [
        (["sh", "-c", "echo no bus; exit 1"], 60, r"failed with exit status 1: no bus \(sh -c "),
        (["/no/reboot"], 60, "could not be started: No such file or directory: /no/reboot"),
        (["sleep", "3600"], 0.5, r"did not end within 0\.5 s"),
    ],
)
def test_a_command_that_fails_tells_its_own_words(command: list[str], timeout_s: float, words: str) -> None:
    with pytest.raises(MigManagerError, match=f"The reboot command {words}") as failed:
        reboot(command, host=Path("/host"), timeout_s=timeout_s)
    assert failed.value.reason is Reason.REBOOT_REQUIRED


def test_a_command_that_the_end_of_the_node_kills_has_not_failed() -> None:
    reboot(["sh", "-c", "kill -TERM $$"], host=Path("/host"), timeout_s=10)
