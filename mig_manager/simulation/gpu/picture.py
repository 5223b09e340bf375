"""The simulated GPUs as plain data, for pictures and for the simulated kubelet."""

from __future__ import annotations

from typing import Any

from mig_manager.simulation.gpu.device import Device
from mig_manager.simulation.gpu.state import GpuInstanceState


def picture(device: Device) -> dict[str, Any]:
    """One GPU; SimulatedGpus.snapshot says what it holds."""
    gpu, board = device.gpu, device.board
    return {
        "index": device.index,
        "uuid": gpu["uuid"],
        "bus_id": gpu["bus_id"],
        "minor": gpu["minor"],
        "model": board.name,
        "mig_capable": bool(board.profiles),
        "memory_mb": board.memory_mb,
        "memory_slices": board.geometry.memory_slices if board.geometry else 0,
        "mig": {"current": bool(gpu["current"]), "pending": bool(gpu["pending"])},
        "persistence": bool(gpu["persistence"]),
        "lost": gpu["lost"],
        "instances": [_instance(device, gi) for gi in gpu["instances"]],
    }


def _instance(device: Device, gi: GpuInstanceState) -> dict[str, Any]:
    profile = device.profile(gi["profile"])
    users = {client["ci"] for client in device.clients() if client["gi"] == gi["id"]}
    compute = []
    for ci in gi["compute"]:
        slices = device.compute_offer(gi, ci["profile"]).profile.slices
        compute.append(
            {
                "id": ci["id"],
                "profile": str(profile.name.split(slices)),
                "start": ci["start"],
                "size": ci["size"],
                "uuid": ci["uuid"],
                "index": ci["index"],
                "busy": bool(users & {ci["id"], None}),
            }
        )
    return {
        "id": gi["id"],
        "profile": str(profile.name),
        "start": gi["start"],
        "size": gi["size"],
        "memory_mb": profile.memory_mb,
        "compute": compute,
    }
