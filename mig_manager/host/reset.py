"""Resets of GPUs: one command for exactly the GPUs that need one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.commands import CommandError, Finished, run
from mig_manager.host.drm import nvidia_drm
from mig_manager.layouts.layout import GpuIdentity

Join = Callable[[Sequence[str]], Sequence[GpuIdentity]]
"""Gives the GPUs at these PCI addresses if all of them may be reset as well; raises MigManagerError if not."""

_ADDRESS = re.compile(r"\b[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", re.IGNORECASE)
_TOGETHER = ("nvlink", "linked", "same command", "same time", "together")

_ADVICE = {
    Reason.RESET_NOT_SUPPORTED: (
        "This platform lets nobody reset the GPU, as a rule because it is a virtual machine."
        " Switch the mode by hand (nvidia-smi -mig) and reboot the node, or let the daemon do it (WITH_REBOOT=true)."
    ),
    Reason.REBOOT_REQUIRED: "Reboot the node, or let the daemon do it (WITH_REBOOT=true).",
}


def reset_gpus(
    command: Sequence[str],
    gpus: Sequence[GpuIdentity],
    *,
    root: Path | None,
    timeout_s: float,
    join: Join | None = None,
    sys: Path = Path("/sys"),
) -> None:
    """Reset exactly these GPUs, with one run of a command.

    Where the platform resets them only together with linked ones, the command is run once more for all of
    them, if `join` allows that.

    Args:
        command: an argument list; in it `{gpus}` stands for the UUIDs and `{addresses}` for the PCI addresses of the
            GPUs, joined by commas.
        gpus: what to reset.
        root: where to chroot to for the command; None or `/`: nowhere.
        timeout_s: how long the command may take.
        join: asked before GPUs are reset that are not among `gpus`; None: they never are.
        sys: the host's sysfs, to tell whether nvidia_drm is what keeps the GPUs.

    Raises:
        MigManagerError: RESET_NOT_SUPPORTED, REBOOT_REQUIRED, GPU_IN_USE or NVML_ERROR, with the command's
            own words; whatever `join` raises.
    """
    done = _run(command, gpus, root, timeout_s)
    if done.status and join is not None and (linked := _linked(done.words, gpus)):
        gpus = (*gpus, *join(linked))
        done = _run(command, gpus, root, timeout_s)
    if done.status == 0:
        return
    reason = _reason(done.words)
    advice = nvidia_drm(sys) if reason is Reason.GPU_IN_USE else _ADVICE.get(reason, "")
    raise MigManagerError(
        reason,
        f"The reset of {_names(gpus)} failed with exit status {done.status}: {done.words or 'no output'}"
        f" ({done.shown}){'. ' if advice else ''}{advice}",
    )


def _run(
    command: Sequence[str], gpus: Sequence[GpuIdentity], root: Path | None, timeout_s: float
) -> Finished:
    values = {
        "gpus": ",".join(gpu.uuid for gpu in gpus),
        "addresses": ",".join(_short(gpu.bus_id) for gpu in gpus),
    }
    try:
        return run(command, values, root=root, timeout_s=timeout_s)
    except CommandError as error:
        raise MigManagerError(Reason.NVML_ERROR, f"The reset of {_names(gpus)} {error}") from None


def _names(gpus: Sequence[GpuIdentity]) -> str:
    return " and ".join(f"GPU {gpu.index}" for gpu in gpus)


def _linked(words: str, gpus: Sequence[GpuIdentity]) -> tuple[str, ...]:
    """The PCI addresses of GPUs that nvidia-smi wants reset in the same command; empty for another refusal."""
    if not any(hint in words.lower() for hint in _TOGETHER):
        return ()
    ours = {_address(gpu.bus_id) for gpu in gpus}
    named = dict.fromkeys(_address(found) for found in _ADDRESS.findall(words))
    return tuple(each for each in named if each not in ours)


def _address(bus_id: str) -> str:
    """With eight digits of domain, so that both ways to write an address are equal."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{domain:0>8}:{rest}"


def _short(bus_id: str) -> str:
    """With four digits of domain, as the kernel writes it."""
    domain, _, rest = bus_id.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def _reason(words: str) -> Reason:
    """What nvidia-smi's words mean."""
    lower = words.lower()
    # The GPU that the console is on cannot be reset either.
    if any(hint in lower for hint in ("not supported", "not permitted", "primary gpu")):
        return Reason.RESET_NOT_SUPPORTED
    if "in use" in lower or "used by" in lower:
        return Reason.GPU_IN_USE
    if "reboot" in lower:
        return Reason.REBOOT_REQUIRED
    return Reason.NVML_ERROR
