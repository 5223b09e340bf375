"""What the daemon costs while nothing is to be done, after it has carried out a change.

The real daemon runs as a process on a simulated node. Start: from its exec to its first watch at the API server,
median of several. Then one change, and after it has ended a while in which nothing happens.

Goals: first watch under 1 s, resident memory under 80 MiB, nothing of NVML open.

Run: python -m benchmarks idle
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from statistics import median

import psutil

from benchmarks._bed import Bed
from benchmarks._table import print_machine, print_table
from mig_manager.simulation.delays import Delays

_GPUS = "8xA100-SXM4-80GB"
_STARTS = 7
_IDLE_S = 90.0


def main() -> None:
    """Measure and print a table."""
    print_machine()
    with Bed(_GPUS, delays=Delays.fast()) as bed:
        starts = []
        for _ in range(_STARTS):
            starts.append(_first_watch(bed))
            bed.stop()
        process = psutil.Process(bed.start())
        bed.apply("all-1g.10gb")
        bed.apply("all-balanced")
        bed.cluster.wait_for(
            lambda: "mig-manager/layouts" in bed.cluster.node_object()["metadata"]["annotations"],
            "the names of the layouts",
        )
        time.sleep(2)
        bed.cluster.api.requests.clear()
        busy = _processor_s(process)
        began = time.monotonic()
        sessions, files, children = 0, 0, 0
        while time.monotonic() < began + _IDLE_S:
            sessions = max(sessions, len(bed.cluster.gpus.sessions()))
            files = max(files, _nvidia_files(process))
            children = max(children, len(process.children(recursive=True)))
            time.sleep(1)
        minutes = (time.monotonic() - began) / 60
        requests = Counter(f"{each.verb} {each.resource}" for each in bed.requests())
        memory = process.memory_full_info()
        busy = _processor_s(process) - busy
        threads = process.num_threads()
    print_machine()
    asked = ", ".join(f"{count} {what}" for what, count in requests.items())
    rows = [
        ("start to the first watch, median", f"{median(starts):.2f} s", "1 s"),
        ("start to the first watch, best and worst", f"{min(starts):.2f} s, {max(starts):.2f} s", ""),
        ("resident memory (RSS)", f"{memory.rss / 2**20:.0f} MiB", "80 MiB"),
        ("of it not shared (USS)", f"{memory.uss / 2**20:.0f} MiB", ""),
        ("threads", f"{threads}", ""),
        ("requests per minute", f"{requests.total() / minutes:.1f} (in {minutes:.1f} min: {asked})", ""),
        ("processor time per minute", f"{1000 * busy / minutes:.0f} ms", ""),
        ("NVML sessions, /dev/nvidia* files, worker processes", f"{sessions}, {files}, {children}", "0"),
    ]
    print_table(["idle", "", "goal"], rows)


def _first_watch(bed: Bed) -> float:
    """Seconds from the start of the daemon's process to its first watch."""
    bed.cluster.api.requests.clear()
    began = time.monotonic()
    bed.start()
    if not bed.cluster.api.requests.wait_for(lambda each: each.verb == "watch", 30):
        raise RuntimeError("no watch within 30 s")
    return next(each.at for each in bed.requests() if each.verb == "watch") - began


def _processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _nvidia_files(process: psutil.Process) -> int:
    """Open device files of NVIDIA's, and a loaded NVML library."""
    files = [
        str(Path(link).readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir() if link.is_symlink()
    ]
    maps = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
    return sum("/dev/nvidia" in name for name in files) + sum("libnvidia-ml" in line for line in maps)


if __name__ == "__main__":
    main()
