"""As much of nvidia-smi as a MIG manager calls: `--gpu-reset` and `-L`, with its words and exit codes.

python -m mig_manager.simulation.nvidia_smi --state FILE --gpu-reset -i UUID,UUID
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pynvml import NVML_ERROR_INVALID_STATE, NVML_ERROR_NOT_SUPPORTED

from mig_manager.simulation.gpus import ResetRefusedError, SimulatedGpus

# Exit codes from the manual page of nvidia-smi.
_DONE = 0
_NOT_AVAILABLE = 3
_NOT_FOUND = 6
_NO_DRIVER = 9
_OTHER = 255


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="nvidia-smi")
    parser.add_argument("--state", required=True, type=Path)
    parser.add_argument("-L", "--list-gpus", action="store_true")
    parser.add_argument("-r", "--gpu-reset", action="store_true")
    parser.add_argument("-i", "--id", help="indices, UUIDs or PCI bus ids, with commas; all GPUs without it")
    options = parser.parse_args(arguments)
    gpus = SimulatedGpus.open(options.state)
    snapshot = gpus.snapshot()
    if not snapshot["loaded"]:
        _say(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
            "Make sure that the latest NVIDIA driver is installed and running."
        )
        return _NO_DRIVER
    chosen = _choose(snapshot["gpus"], options.id)
    if not chosen:
        _say("No devices were found")
        return _NOT_FOUND
    if options.gpu_reset:
        return _reset(gpus, chosen)
    _list(chosen)
    return _DONE


def _choose(gpus: list[dict[str, Any]], ids: str | None) -> list[dict[str, Any]]:
    """The GPUs that `ids` names, in its order; none if it names one that is not there."""
    if ids is None:
        return gpus
    found = []
    for word in ids.split(","):
        match = [gpu for gpu in gpus if word.strip() in (str(gpu["index"]), gpu["uuid"], *_addresses(gpu))]
        if not match:
            return []
        found += match
    return found


def _addresses(gpu: dict[str, Any]) -> tuple[str, ...]:
    """Ways to write the PCI bus id: domains have eight digits in NVML, and four for the kernel."""
    long = gpu["bus_id"]
    return long, long.lower(), long[4:], long[4:].lower()


def _reset(gpus: SimulatedGpus, chosen: list[dict[str, Any]]) -> int:
    try:
        gpus.reset([gpu["uuid"] for gpu in chosen])
    except ResetRefusedError as refused:
        return _explain(refused, {gpu["index"]: gpu["bus_id"] for gpu in gpus.snapshot()["gpus"]}, chosen)
    for gpu in chosen:
        _say(f"GPU {gpu['bus_id']} was successfully reset.")
    _say("All done.")
    return _DONE


def _explain(refused: ResetRefusedError, bus_ids: dict[int, str], chosen: list[dict[str, Any]]) -> int:
    if refused.code == NVML_ERROR_NOT_SUPPORTED:
        for gpu in chosen:
            _say(f"Resetting GPU {gpu['bus_id']} is not supported.")
        return _NOT_AVAILABLE
    if refused.code == NVML_ERROR_INVALID_STATE:
        _say("The following GPUs are connected by NVLink and must be reset in the same command:")
        for index in refused.holders:
            _say(f"  GPU {bus_ids[index]}")
        return _OTHER
    _say("The following GPUs could not be reset:")
    for index in refused.holders:
        _say(f"  GPU {bus_ids[index]}: In use by another client")
    one = len(refused.holders) == 1
    devices = "1 device is" if one else f"{len(refused.holders)} devices are"
    _say("")
    _say(
        f"{devices} currently being used by one or more other processes (e.g., Fabric Manager, CUDA "
        "application, graphics application such as an X server, or a monitoring application such as another "
        f"instance of nvidia-smi). Please first kill all processes using {'this' if one else 'these'} "
        f"device{'' if one else 's'} and all compute applications running in the system."
    )
    return _OTHER


def _list(gpus: list[dict[str, Any]]) -> None:
    for gpu in gpus:
        _say(f"GPU {gpu['index']}: {gpu['model']} (UUID: {gpu['uuid']})")
        devices = [ci for gi in gpu["instances"] for ci in gi["compute"]]
        for device in sorted(devices, key=lambda ci: ci["index"]):
            _say(f"  MIG {device['profile']:<15} Device {device['index']:>2}: (UUID: {device['uuid']})")


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
