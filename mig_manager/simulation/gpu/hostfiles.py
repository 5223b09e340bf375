"""What /proc, /dev and /sys of a simulated node show of its GPUs and of who uses them, as real files.

Only what a MIG manager looks at. Nodes under dev are names without devices behind them: the links of open files
lead to them, and need no root to make.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from mig_manager.simulation.gpu.state import ClientState, GpuDeviceState, NodeState

NVIDIA_CAPS_MAJOR = 237
BOOT_TIME = 1_700_000_000
"""Seconds since the epoch."""
PERSISTENCED_PID = 4_999_999

_FIRST_CAPABILITY = 3
_PER_GPU = 135
_PER_INSTANCE = 9
_INSTANCES = 15
_COMPUTE = 8
_MANIFEST = "files.json"
_MODULE = "sys/module/nvidia/initstate"
_UNLOADED = ".unloaded"
_PERSISTENCED = "nvidia-persistenced"


def capability_minor(gpu_minor: int, instance: int, compute: int | None = None) -> int:
    """The minor number of a capability, by the rule that the published numbers follow."""
    first = _FIRST_CAPABILITY + _PER_GPU * gpu_minor + _PER_INSTANCE * instance
    return first if compute is None else first + 1 + compute


def render(state: NodeState) -> None:
    """Bring the files up to date; nothing where the node has none. The caller keeps other writers out."""
    directory = state["options"]["host_files"]
    if not directory:
        return
    # Most changes are sessions that open and close, which show nowhere.
    module = [state["loaded"], state["driver"], state["boot_id"]]
    shown = json.dumps([state["clients"], state["gpus"], state["options"], *module])
    version = hashlib.sha256(shown.encode()).hexdigest()
    known: dict[str, str] = {}
    manifest = f"{directory}/{_MANIFEST}"
    with suppress(FileNotFoundError), open(manifest, encoding="utf-8") as file:
        if file.readline() == f"{version}\n":
            return
        known = json.load(file)
    root = Path(directory)
    wanted = dict(_files(state, root))
    gone = known.keys() - wanted.keys()
    for path in gone:
        if path == _MODULE:
            # sysfs gives no inode number out twice: this one is kept from the next load of the module.
            os.replace(root / path, root / _UNLOADED)
        else:
            (root / path).unlink(missing_ok=True)
    for path, content in wanted.items():
        if known.get(path) != content:
            _write(f"{directory}/{path}", content)
    _prune(root, gone, wanted)
    table = f"{directory}/proc/driver/nvidia-caps/mig-minors"
    if not os.path.exists(table):
        _write(table, f"={_mig_minors(state)}")
    _write(manifest, f"={version}\n{json.dumps(wanted)}")


def _write(path: str, content: str) -> None:
    directory, name = os.path.split(path)
    if not os.path.isdir(directory):
        os.makedirs(directory, exist_ok=True)
    kind, text = content[0], content[1:]
    # A reader must never see half a file, also where the writer is killed.
    new = f"{directory}/.{name}.new"
    with suppress(FileNotFoundError):  # of a writer that was killed
        os.unlink(new)
    if kind == "@":
        os.symlink(text, new)
    else:
        with open(new, "w", encoding="utf-8") as file:
            file.write(text)
    os.replace(new, path)


def _prune(root: Path, gone: set[str], wanted: dict[str, str]) -> None:
    """Remove the directories of processes and instances that are no more."""
    places = {os.path.dirname(path) for path in gone} - {os.path.dirname(path) for path in wanted}
    kept = {parent for path in wanted for parent in _parents(path)} if places else set()
    for place in places:
        for empty in {place, *_parents(place)} - kept:
            shutil.rmtree(root / empty, ignore_errors=True)


def _parents(path: str) -> Iterator[str]:
    while path := os.path.dirname(path):
        yield path


def _files(state: NodeState, root: Path) -> Iterator[tuple[str, str]]:
    """All files by path: `=` and the text of a regular one, or `@` and the target of a link."""
    numbers = "226 drm\n"
    if state["loaded"]:
        numbers = "195 nvidia\n195 nvidiactl\n226 drm\n507 nvidia-uvm\n"
        numbers += f"{NVIDIA_CAPS_MAJOR} nvidia-caps\n"
        yield _MODULE, "=live\n"
        yield "sys/module/nvidia/version", f"={state['driver']}\n"
        yield (
            "proc/driver/nvidia/version",
            f"=NVRM version: NVIDIA UNIX x86_64 Kernel Module  {state['driver']}\n",
        )
    yield "proc/devices", f"=Character devices:\n  1 mem\n{numbers}\nBlock devices:\n"
    yield "proc/stat", f"=btime {BOOT_TIME}\n"
    yield "proc/sys/kernel/random/boot_id", f"={state['boot_id']}\n"
    for index, gpu in enumerate(state["gpus"]):
        yield from _capabilities(gpu)
        yield from _pci(state, index, gpu)
    if state["options"]["drm"]:
        yield "sys/module/nvidia_drm/refcnt", f"={state['options']['drm_users']}\n"
        yield "sys/module/nvidia_drm/parameters/modeset", "=Y\n"
    yield from _processes(state, root)


def _mig_minors(state: NodeState) -> str:
    """The table of all capabilities that can ever be; it does not change."""
    lines = ["config 1", "monitor 2"]
    for minor in sorted(gpu["minor"] for gpu in state["gpus"]):
        for gi in range(_INSTANCES):
            lines.append(f"gpu{minor}/gi{gi}/access {capability_minor(minor, gi)}")
            lines += [
                f"gpu{minor}/gi{gi}/ci{ci}/access {capability_minor(minor, gi, ci)}" for ci in range(_COMPUTE)
            ]
    return "\n".join(lines) + "\n"


def _capabilities(gpu: GpuDeviceState) -> Iterator[tuple[str, str]]:
    """Those of live instances. The simulation says that it manages its nodes by itself (DeviceFileModify)."""
    for gi in gpu["instances"]:
        place = f"proc/driver/nvidia/capabilities/gpu{gpu['minor']}/mig/gi{gi['id']}"
        yield f"{place}/access", _capability(capability_minor(gpu["minor"], gi["id"]))
        for ci in gi["compute"]:
            minor = capability_minor(gpu["minor"], gi["id"], ci["id"])
            yield f"{place}/ci{ci['id']}/access", _capability(minor)


def _capability(minor: int) -> str:
    return f"=DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 0\n"


def _pci(state: NodeState, index: int, gpu: GpuDeviceState) -> Iterator[tuple[str, str]]:
    place = f"sys/bus/pci/devices/{gpu['bus_id'].lower()[4:]}"
    yield f"{place}/class", "=0x030200\n"
    if not state["options"]["passthrough"] and state["options"]["resets"] != "unsupported":
        yield f"{place}/reset", "="
    if state["options"]["drm"]:
        yield f"{place}/drm/card{index}/dev", f"=226:{index}\n"


def _processes(state: NodeState, root: Path) -> Iterator[tuple[str, str]]:
    clients: dict[int, list[ClientState]] = {}
    for client in state["clients"]:
        clients.setdefault(client["pid"], []).append(client)
    for pid, of_one in clients.items():
        nodes = ["nvidiactl", "nvidia-uvm", *(node for each in of_one for node in _opened(state, each))]
        yield from _process(root, pid, of_one[0]["name"], of_one[0]["cgroup"], nodes)
    persistent = [f"nvidia{gpu['minor']}" for gpu in state["gpus"] if gpu["persistence"]]
    if persistent:
        cgroup = f"/system.slice/{_PERSISTENCED}.service"
        yield from _process(
            root, PERSISTENCED_PID, f"/usr/bin/{_PERSISTENCED} --user root", cgroup, persistent
        )


def _opened(state: NodeState, client: ClientState) -> Iterator[str]:
    """The device nodes that a client keeps open."""
    if client["gpu"] is None:
        yield from (f"nvidia{gpu['minor']}" for gpu in state["gpus"])
        return
    minor = state["gpus"][client["gpu"]]["minor"]
    yield f"nvidia{minor}"
    if client["gi"] is not None:
        yield f"nvidia-caps/nvidia-cap{capability_minor(minor, client['gi'])}"
        if client["ci"] is not None:
            yield f"nvidia-caps/nvidia-cap{capability_minor(minor, client['gi'], client['ci'])}"


def _process(root: Path, pid: int, name: str, cgroup: str, nodes: list[str]) -> Iterator[tuple[str, str]]:
    place = f"proc/{pid}"
    command = name.replace(" ", "\0")
    short = os.path.basename(name.split(" ")[0])[:15]
    yield f"{place}/cmdline", f"={command}\0"
    yield f"{place}/stat", f"={pid} ({short}) S 1 {' '.join(['0'] * 17)} 100 0\n"
    yield f"{place}/cgroup", f"=0::{cgroup or '/'}\n"
    yield f"{place}/fd/0", "@/dev/null"
    for number, node in enumerate(dict.fromkeys(nodes), start=3):
        yield f"{place}/fd/{number}", f"@{root}/dev/{node}"
