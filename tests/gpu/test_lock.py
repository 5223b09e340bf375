"""Two changes of the same GPUs never run at the same time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mig_manager.cli.main import command_line
from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.lock import sole_changer
from mig_manager.gpu.nvml import NvmlSource

_HOLD = """
import sys
from mig_manager.gpu.lock import sole_changer
from mig_manager.gpu.nvml import NvmlSource
with sole_changer(NvmlSource(loader="a:b", argument=sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_second_change_is_refused_by_name_until_the_first_has_ended(tmp_path: Path) -> None:
    state = tmp_path / "gpus.json"
    arguments = ["apply", "--simulate", "A30", "--simulate-state", str(state), "-c", "all-balanced"]
    command = [sys.executable, "-c", _HOLD, str(state)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with (
            pytest.raises(MigManagerError, match=f"pid {other.pid}") as caught,
            sole_changer(NvmlSource(loader="a:b", argument=str(state))),
        ):
            pass
        assert caught.value.reason is Reason.GPU_IN_USE
        assert command_line(arguments) == 3
        other.kill()
    assert command_line(arguments) == 0
