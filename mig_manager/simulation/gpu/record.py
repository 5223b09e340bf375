"""The record of calls: one line each, appended by every process."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One NVML call, or one GPU reset (function `reset`)."""

    function: str
    gpu: int | None
    """By PCI bus id; None for calls that concern no GPU, or none that exists."""
    code: int
    """nvmlReturn_t."""
    changes: bool
    """Whether the function is one that changes the GPU."""
    seconds: float
    pid: int


def append(path: str, record: CallRecord) -> None:
    """Add a line."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, _line(record))
    finally:
        os.close(file)


def _line(record: CallRecord) -> bytes:
    fields = [record.function, record.gpu, record.code, record.changes, record.seconds, record.pid]
    return json.dumps(fields).encode() + b"\n"


def read(path: Path) -> list[CallRecord]:
    """All lines; none without the file."""
    if not path.exists():
        return []
    return [CallRecord(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
