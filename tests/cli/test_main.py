"""How commands start and end, as real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tests.cli.conftest import MAIN, Cli


def hear_ctrl_c() -> None:
    """Where the tests themselves run in the background, their children would ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


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
    commands = (
        "plan",
        "apply",
        "assert",
        "export",
        "checkpoint",
        "restore",
        "create",
        "run",
        "release",
        "demo",
    )
    for word in (*commands, "Exit codes"):
        assert word in ended.out
    assert "..." not in ended.out.partition("Commands:")[2], "no sentence is cut off"
    assert cli() == ended, "no arguments ask for help"


def test_version_is_one_line(cli: Cli) -> None:
    ended = cli("--version")
    assert (ended.code, ended.err, len(ended.out.splitlines())) == (0, "", 1)
    assert ended.out.startswith("mig-manager")


def test_a_reader_that_goes_away_ends_nothing_but_the_printing() -> None:
    hear, say = os.pipe()
    os.close(hear)
    try:
        for output in ("json", "text"):
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


def test_a_name_that_the_terminal_has_no_code_for_is_printed_all_the_same(tmp_path: Path) -> None:
    layouts = tmp_path / "layouts.yaml"
    layouts.write_text("version: v1\nmig-configs: {größe: [{devices: all, mig-enabled: false}]}\n", "utf-8")
    done = subprocess.run(
        [*MAIN, "plan", "--simulate", "1xA30", "-f", str(layouts), "-c", "größe"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"gr\xf6\xdfe: nothing to do" in done.stdout


def test_ctrl_c_ends_quietly_with_130() -> None:
    with subprocess.Popen(
        [*MAIN, "plan", "--current", "-"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=hear_ctrl_c,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        # More than a pipe holds: once it is written, the command is reading.
        process.stdin.write(b" " * 1_000_000)
        process.stdin.flush()
        for _ in range(10):
            # A signal that comes just before a read starts is only heard when the read ends.
            process.send_signal(signal.SIGINT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
                break
        assert process.poll() == 130
        assert process.stderr.read() == b""
        process.stdin.close()


def test_no_gpus_on_this_machine_is_told_with_what_to_do(cli: Cli) -> None:
    ended = cli("export")
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("error: NvmlError:")
    assert "--simulate" in ended.err


def test_run_becomes_the_daemon() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "NODE_NAME"}
    done = subprocess.run([*MAIN, "run"], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout) == (2, "")
    assert "NODE_NAME" in done.stderr, "the daemon's own message"
    assert "Traceback" not in done.stderr
