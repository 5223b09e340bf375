"""The D-Bus system bus of a simulated host: a real dbus-daemon on a socket of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Self

_PROGRAM = "dbus-daemon"
RULES = """\
<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-BUS Bus Configuration 1.0//EN"
  "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <type>system</type>
  <listen>unix:path={path}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow user="*"/>
    <allow own="*"/>
    <allow send_type="method_call"/>
    <allow send_type="signal"/>
    <allow send_requested_reply="true" send_type="method_return"/>
    <allow send_requested_reply="true" send_type="error"/>
    <allow receive_type="method_call"/>
    <allow receive_type="method_return"/>
    <allow receive_type="error"/>
    <allow receive_type="signal"/>
  </policy>
</busconfig>
"""


class MessageBus:
    """Runs from enter to exit of the context manager."""

    def __init__(self, host_root: Path) -> None:
        """The socket is where a host has it, below that directory."""
        self.socket = host_root / "run/dbus/system_bus_socket"
        self.address = f"unix:path={self.socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it, and come back once it takes connections. Raises FileNotFoundError without dbus-daemon."""
        self.socket.parent.mkdir(parents=True, exist_ok=True)
        self.socket.unlink(missing_ok=True)
        rules = self.socket.with_name("bus.conf")
        rules.write_text(RULES.format(path=self.socket), encoding="utf-8")
        self._process = subprocess.Popen(
            [_PROGRAM, f"--config-file={rules}", "--nofork", "--nopidfile", "--nosyslog", "--print-address"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise RuntimeError(f"{_PROGRAM} did not start")

    def stop(self) -> None:
        """End it; the socket stays, as it does on a host."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
