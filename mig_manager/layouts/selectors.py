"""How a layout names GPUs: PCI ids, PCI bus ids and UUIDs, in any usual spelling."""

from __future__ import annotations

import re

from mig_manager.layouts.layout import PciFilter

NVIDIA = 0x10DE
"""The PCI vendor id that every GPU of ours has."""

_NUMBER = re.compile(r"0[xX][0-9a-fA-F]{1,8}|[1-9][0-9]{0,9}")
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]{4}(?:[0-9a-fA-F]{4})?")
_BUS_ID = re.compile(
    r"(?:(?P<domain>[0-9a-f]{1,8}):)?(?P<bus>[0-9a-f]{1,2}):(?P<device>[01]?[0-9a-f])(?:\.(?P<function>[0-7]))?",
    re.IGNORECASE,
)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def parse_filter(text: str) -> PciFilter | None:
    """A device filter: `0x20B010DE`, with a subsystem id `0x20B010DE:0x134F10DE`; None where it is neither.

    Upper and lower case are the same, and a decimal number is read as one, as nvidia-mig-parted does. The
    vendor must be NVIDIA's: any other id would silently match nothing.
    """
    device, colon, subsystem = text.strip().partition(":")
    if not _NUMBER.fullmatch(device) or (colon and not _NUMBER.fullmatch(subsystem)):
        return None
    device_id = int(device, 0)
    subsystem_id = int(subsystem, 0) if colon else None
    if device_id > 0xFFFFFFFF or device_id & 0xFFFF != NVIDIA or (subsystem_id or 0) > 0xFFFFFFFF:
        return None
    return PciFilter(device_id, subsystem_id)


def guess_filter(text: str) -> str | None:
    """What a malformed device filter was probably meant to be."""
    match = _HEX.fullmatch(text.strip().partition(":")[0])
    if match is None:
        return None
    digits = match[0].upper().removeprefix("0X")
    if len(digits) == 8 and digits.startswith("10DE"):
        digits = digits[4:] + digits[:4]
    return f"0x{digits[:4]}10DE"


def parse_bus_id(text: str) -> str | None:
    """A PCI bus id in NVML's spelling (`00000000:07:00.0`, upper case); None where the text is none.

    The domain may have fewer digits or be left out, as may the function.
    """
    match = _BUS_ID.fullmatch(text.strip())
    if match is None:
        return None
    domain, bus, device = (int(match[part] or "0", 16) for part in ("domain", "bus", "device"))
    return f"{domain:08X}:{bus:02X}:{device:02X}.{match['function'] or '0'}"


def parse_uuid(text: str) -> str | None:
    """The UUID of a GPU in NVML's spelling, `GPU-` and lower case; None where the text is none."""
    stripped = text.strip()
    return "GPU-" + stripped[4:].lower() if _UUID.fullmatch(stripped) else None
