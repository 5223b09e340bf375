"""The host's processes: what they are, and which device nodes they have open."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from mig_manager.gpu.cgroups import Owner, owner

_CHARACTER_DEVICES = "Character devices:"
_COMMAND_LENGTH = 120


@dataclass(frozen=True, slots=True)
class HostFiles:
    """Where the host's kernel file systems are to be found."""

    proc: Path = Path("/proc")
    """Of the host's pid namespace."""
    dev: Path = Path("/dev")
    sys: Path = Path("/sys")


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process."""

    pid: int
    program: str
    """File name of what it runs, such as `nvidia-persistenced`."""
    command: str
    """Its command line, shortened."""
    started: datetime
    owner: Owner


def read_process(proc: Path, pid: int) -> ProcessFacts | None:
    """What a process is; None when it has ended or is ending."""
    try:
        arguments = [
            each.decode(errors="replace") for each in _read(proc, pid, "cmdline").split(b"\0") if each
        ]
        name, started = _stat(_read(proc, pid, "stat"))
        if started is None:
            return None
        whose = owner(_read(proc, pid, "cgroup").decode(errors="replace"))
    except (OSError, ValueError, IndexError):
        return None
    # The kernel shortens the name to 15 characters; the command line has it whole, unless it was rewritten.
    program = os.path.basename(arguments[0].split(" ")[0]).rstrip(":") if arguments else name
    command = " ".join(arguments)[:_COMMAND_LENGTH] or name
    return ProcessFacts(pid, program, command, _when(proc, started), whose)


def _read(proc: Path, pid: int, name: str) -> bytes:
    return (proc / str(pid) / name).read_bytes()


def _stat(text: bytes) -> tuple[str, int | None]:
    """Name, and start in clock ticks since boot; None for a zombie, which holds nothing."""
    # The name may hold spaces and parentheses.
    begin, end = text.index(b"("), text.rindex(b")")
    fields = text[end + 2 :].split()
    return text[begin + 1 : end].decode(errors="replace"), None if fields[0] in b"ZX" else int(fields[19])


def _when(proc: Path, ticks: int) -> datetime:
    lines = (proc / "stat").read_text().splitlines()
    boot = next((int(line.split()[1]) for line in lines if line.startswith("btime ")), 0)
    return datetime.fromtimestamp(boot + ticks / os.sysconf("SC_CLK_TCK"), UTC).replace(microsecond=0)


def ourselves(proc: Path) -> frozenset[int]:
    """Our own pid there, and those of the processes that we started."""
    try:
        # A link that the kernel makes for whoever reads it, in the pid namespace of that mount.
        me = int(os.readlink(proc / "self"))
    except (OSError, ValueError):
        me = os.getpid()
    return frozenset({me, *(pid for pid in pids(proc) if _parent(proc, pid) == me)})


def _parent(proc: Path, pid: int) -> int | None:
    try:
        text = _read(proc, pid, "stat")
        return int(text[text.rindex(b")") + 2 :].split()[1])
    except (OSError, ValueError, IndexError):
        return None


def pids(proc: Path) -> list[int]:
    """Of all processes; none where that cannot be read."""
    try:
        return [int(entry) for entry in os.listdir(proc) if entry.isdecimal()]
    except OSError:
        return []


def open_nodes(proc: Path, pid: int, numbers: Collection[int], paths: Collection[str]) -> Iterator[int | str]:
    """Which of these device nodes a process has open, by device number.

    A number counts wherever the node lies in the process's own mount namespace. A node that is no device, as
    in a simulation, is told by its path. A process that ends meanwhile, or that we may not look at, has none.
    """
    directory = f"{proc}/{pid}/fd"
    try:
        entries = os.listdir(directory)
    except OSError:
        return
    for entry in entries:
        link = f"{directory}/{entry}"
        try:
            found = os.stat(link)
        except FileNotFoundError:
            found = None
        except OSError:
            continue
        if found is not None and stat.S_ISCHR(found.st_mode):
            if found.st_rdev in numbers:
                yield found.st_rdev
        elif paths and (found is None or stat.S_ISREG(found.st_mode)):
            try:
                path = os.readlink(link)
            except OSError:
                continue
            if path in paths:
                yield path


def majors(proc: Path) -> dict[str, int]:
    """Major numbers of character devices by driver name, from /proc/devices."""
    try:
        lines = (proc / "devices").read_text().splitlines()
    except OSError:
        return {}
    found: dict[str, int] = {}
    for line in lines[lines.index(_CHARACTER_DEVICES) + 1 :] if _CHARACTER_DEVICES in lines else ():
        if not line.strip():
            break
        number, name = line.split(maxsplit=1)
        found.setdefault(name, int(number))
    return found
