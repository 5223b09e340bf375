"""How commands start and end, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tests.cli.conftest import Cli

MAIN = [sys.executable, "-m", "mig_manager.cli.main"]


def test_help_needs_none_of_the_heavy_libraries() -> None:
    script = (
        "import sys; from mig_manager.cli.main import command_line; command_line(['--help']);"
        "heavy = {'rich', 'yaml', 'pynvml', 'kubernetes', 'pydantic_settings', 'multiprocessing', 'aiohttp'};"
        "print('loaded:', sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "loaded: []"


def test_help_names_every_command_and_the_exit_codes(cli: Cli) -> None:
    ended = cli("--help")
    assert ended.code == 0
    for word in ("plan", "apply", "assert", "export", "run", "Exit codes"):
        assert word in ended.out
    assert cli() == ended, "no arguments ask for help"


def test_version_is_one_line(cli: Cli) -> None:
    ended = cli("--version")
    assert (ended.code, ended.err, len(ended.out.splitlines())) == (0, "", 1)
    assert ended.out.startswith("mig-manager")


def test_a_reader_that_goes_away_ends_nothing_but_the_printing() -> None:
    hear, say = os.pipe()
    os.close(hear)
    try:
        for output in ("yaml", "json", "text"):
            done = subprocess.run(
                [*MAIN, "export", "--simulate", "2xA30", "-o", output],
                stdout=say,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
            assert (done.returncode, done.stderr) == (0, "")
    finally:
        os.close(say)


def test_ctrl_c_ends_quietly_with_130() -> None:
    with subprocess.Popen(
        [*MAIN, "plan", "--current", "-"], stdin=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        # More than a pipe holds: once it is written, the command is reading.
        process.stdin.write(b" " * 1_000_000)
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 130
        assert process.stderr.read() == b""
        process.stdin.close()


def test_no_gpus_on_this_machine_is_told_with_what_to_do(cli: Cli) -> None:
    ended = cli("export")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("error: NvmlError:")
    assert "--simulate" in ended.err
