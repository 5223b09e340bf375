"""Device nodes for MIG capabilities, which the kernel driver itself cannot create.

A container reaches a MIG device through /dev/nvidia-caps/nvidia-capN, one node for the GPU instance and one for
the compute instance. nvidia-smi creates them as a side effect; NVML calls on their own may not.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_DRIVER = "nvidia-caps"
_FILES = ("gpu*/mig/gi*/access", "gpu*/mig/gi*/ci*/access")


@dataclass(frozen=True, slots=True)
class CapabilityNodes:
    """What came of creating the missing nodes."""

    created: tuple[Path, ...]
    problems: tuple[str, ...]
    """In words, one a node that is not as it should be."""


@dataclass(frozen=True, slots=True)
class _Capability:
    minor: int
    mode: int
    managed: bool
    """Whether the driver lets user space create the node (DeviceFileModify)."""


def create_capability_nodes(proc: Path, dev: Path) -> CapabilityNodes:
    """Create the nodes that the GPU and compute instances of now lack. Nothing is removed, nothing raised.

    Args:
        proc: the host's /proc; the driver lists live capabilities below driver/nvidia/capabilities.
        dev: the directory that is /dev where containers get their devices from.
    """
    created: list[Path] = []
    major: int | None = None
    capabilities, problems = _capabilities(proc)
    for name, capability in capabilities:
        path = dev / _DRIVER / f"nvidia-cap{capability.minor}"
        if not capability.managed:
            continue
        major = _major(proc) if major is None else major
        if major is None:
            problems.append(f"{proc / 'devices'} names no {_DRIVER}: no device nodes for MIG can be created.")
            break
        try:
            if _create(path, os.makedev(major, capability.minor), capability.mode):
                created.append(path)
        except OSError as error:
            problems.append(f"{path} for {name} cannot be created: {error.strerror or error}.")
        except _WrongNodeError:
            problems.append(
                f"{path} for {name} is not the device {major}:{capability.minor}; remove it, and it is created"
                " anew."
            )
    return CapabilityNodes(tuple(created), tuple(problems))


class _WrongNodeError(Exception):
    """Something else lies there."""


def _create(path: Path, number: int, mode: int) -> bool:
    """Whether the node was missing, and is there now."""
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    try:
        os.mknod(path, stat.S_IFCHR | mode, number)
    except FileExistsError:
        found = os.stat(path)
        if not stat.S_ISCHR(found.st_mode) or found.st_rdev != number:
            raise _WrongNodeError from None
        return False
    path.chmod(mode)  # whatever the umask is
    return True


def _capabilities(proc: Path) -> tuple[list[tuple[str, _Capability]], list[str]]:
    """The capabilities of live instances by name, and what could not be read of them."""
    root = proc / "driver/nvidia/capabilities"
    found: list[tuple[str, _Capability]] = []
    problems: list[str] = []
    for file in _files(root):
        try:
            found.append((str(file.parent.relative_to(root)), _read(file)))
        except FileNotFoundError:
            continue  # the instance went in between
        except (OSError, ValueError, KeyError) as error:
            problems.append(f"{file} cannot be read: {error}.")
    return found, problems


def _files(root: Path) -> Iterator[Path]:
    for pattern in _FILES:
        yield from sorted(root.glob(pattern))


def _read(file: Path) -> _Capability:
    """DeviceFileMinor, DeviceFileMode and DeviceFileModify, each a decimal number."""
    fields = dict(line.split(":", 1) for line in file.read_text().splitlines() if ":" in line)
    return _Capability(
        minor=int(fields["DeviceFileMinor"]),
        mode=int(fields["DeviceFileMode"]),
        managed=int(fields.get("DeviceFileModify", "1")) != 0,
    )


def _major(proc: Path) -> int | None:
    try:
        lines = (proc / "devices").read_text().splitlines()
    except OSError:
        return None
    return next((int(f[0]) for line in lines if len(f := line.split()) == 2 and f[1] == _DRIVER), None)
