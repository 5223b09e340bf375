"""Other implementations of systemd's interface: python-dbusmock's, and systemd itself."""

from __future__ import annotations

import os
import select
import shutil
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from jeepney import DBusAddress, MatchRule, message_bus, new_method_call
from jeepney.io.blocking import DBusConnection, open_dbus_connection
from jeepney.low_level import Message
from jeepney.wrappers import unwrap_msg

from mig_manager.simulation.messagebus import RULES, MessageBus
from tests.requirements import need, need_dbus, python_with_dbusmock

SYSTEMD = "/lib/systemd/systemd"
_NAME = "org.freedesktop.systemd1"
_MOCK = DBusAddress("/org/freedesktop/systemd1", bus_name=_NAME, interface="org.freedesktop.DBus.Mock")
_PATIENCE = 60.0
# A namespace of its own keeps it off this machine, and ends with everything in it when the first process does.
_START = """\
mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system
/lib/systemd/systemd --user & wait  # as the first process it would take itself for the machine's
"""


@contextmanager
def dbusmock(root: Path, units: Sequence[str]) -> Iterator[str]:
    """python-dbusmock's template, with the two calls added that it lacks. Units are inactive at first."""
    need_dbus()
    python = python_with_dbusmock()
    need("dbusmock", python)
    assert python is not None
    command = [python, "-m", "dbusmock", "--template", "systemd"]
    with MessageBus(root) as bus:
        environment = {**os.environ, "DBUS_SYSTEM_BUS_ADDRESS": bus.address}
        process = subprocess.Popen(command, env=environment)
        try:
            with _owned(bus.address) as connection:
                for method, signature, values in (
                    *(("AddMockUnit", "s", (name,)) for name in units),
                    _method("LoadUnit", "s", "o", "ret = self.units[args[0]]"),
                    _method("Subscribe", "", "", ""),
                ):
                    call = new_method_call(_MOCK, method, signature, values)
                    unwrap_msg(connection.send_and_get_reply(call, timeout=_PATIENCE))
            yield bus.address
        finally:
            process.kill()
            process.wait()


def _method(name: str, takes: str, gives: str, code: str) -> tuple[str, str, tuple[str, ...]]:
    return "AddMethod", "sssss", (f"{_NAME}.Manager", name, takes, gives, code)


@contextmanager
def systemd(root: Path, units: Sequence[str]) -> Iterator[str]:
    """A real systemd, with services that sleep. Units are inactive at first."""
    need_dbus()
    need("systemd", os.getuid() == 0 and shutil.which(SYSTEMD) and shutil.which("unshare"))
    files, run, rules, started = root / "units", root / "run", root / "bus.conf", root / "started"
    files.mkdir()
    run.mkdir(mode=0o700)
    rules.write_text(RULES.format(path=root / "unused"))
    os.mkfifo(started)
    daemon = f"dbus-daemon --config-file={rules} --address=systemd: --nofork --nopidfile --nosyslog"
    contents = {
        "dbus.socket": "[Socket]\nListenStream=%t/bus\n",
        "dbus.service": f"[Service]\nType=notify\nExecStart=/usr/bin/env {daemon} --systemd-activation\n",
        "started.service": f"After=dbus.service\n[Service]\nExecStart=/bin/sh -c 'echo >{started}'\n",
        "default.target": "Requires=dbus.socket dbus.service started.service\n",
        **dict.fromkeys(units, "[Service]\nExecStart=/bin/sleep 1000\n"),
    }
    for name, text in contents.items():
        (files / name).write_text(f"[Unit]\nDefaultDependencies=no\n{text}")
    environment = {
        "PATH": os.environ["PATH"],
        "XDG_RUNTIME_DIR": str(run),
        "SYSTEMD_UNIT_PATH": str(files),
        "SYSTEMD_LOG_LEVEL": "err",
    }
    process = subprocess.Popen(
        ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", _START],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    fifo = os.open(started, os.O_RDWR)
    try:
        assert process.stdout is not None
        up, _, _ = select.select([fifo, process.stdout.fileno()], [], [], _PATIENCE)
        need("systemd", fifo in up)
        with _owned(f"unix:path={run / 'bus'}"):
            pass
        yield f"unix:path={run / 'bus'}"
    finally:
        os.close(fifo)
        process.kill()
        process.communicate()


@contextmanager
def _owned(address: str) -> Iterator[DBusConnection]:
    """A connection to that bus, once there is a systemd on it."""
    with open_dbus_connection(address) as connection:
        rule = MatchRule(type="signal", member="NameOwnerChanged")
        heard: deque[Message] = deque()
        with connection.filter(rule, queue=heard):
            unwrap_msg(connection.send_and_get_reply(message_bus.AddMatch(rule)))
            there = unwrap_msg(connection.send_and_get_reply(message_bus.NameHasOwner(_NAME)))[0]
            while not there:
                there = connection.recv_until_filtered(heard, timeout=_PATIENCE).body[0] == _NAME
        yield connection
