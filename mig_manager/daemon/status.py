"""What stands on the Node about a run, and the words for it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from mig_manager.errors import MigManagerError, Reason

CONFIG_LABEL = "nvidia.com/mig.config"
"""The wanted layout; the user's."""
STATE_LABEL = "nvidia.com/mig.config.state"
STRATEGY_LABEL = "nvidia.com/mig.strategy"
STATUS_ANNOTATION = "mig-manager/status"
GPUS_ANNOTATION = "mig-manager/gpus"
LAYOUTS_ANNOTATION = "mig-manager/layouts"
LAYOUTS_FROM_ANNOTATION = "mig-manager/layouts-from"
"""Which ConfigMap or file defines them; see layoutsfrom.py."""
AGAIN_ANNOTATION = "mig-manager/again"
"""Written by whoever wants the same layout tried again; any other value than before does that. Together with the
removal of the status it makes the label count as new."""


class State(StrEnum):
    """Values of the state label, NVIDIA's words."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
    REBOOTING = "rebooting"


class Phase(StrEnum):
    """Where a run stands."""

    VALIDATING = "Validating"
    WAITING_FOR_WINDOW = "WaitingForWindow"
    WAITING_FOR_SLOT = "WaitingForSlot"
    CORDONING = "Cordoning"
    DRAINING = "Draining"
    PAUSING_OPERANDS = "PausingOperands"
    STOPPING_HOST_SERVICES = "StoppingHostServices"
    FREEING_GPUS = "FreeingGpus"
    APPLYING = "Applying"
    REBOOTING = "Rebooting"
    PUBLISHING_DEVICES = "PublishingDevices"
    STARTING_HOST_SERVICES = "StartingHostServices"
    RESUMING_OPERANDS = "ResumingOperands"
    WAITING_FOR_RESOURCES = "WaitingForResources"
    DONE = "Done"


class Origin(StrEnum):
    """Who defines a layout; the first that has a name wins."""

    FILE = "file"
    """The ConfigMap or CONFIG_FILE."""
    DEFAULT = "default"
    """DEFAULT_CONFIG_FILE."""
    HARDWARE = "hardware"
    """Generated from the node's own GPUs."""

    @property
    def rank(self) -> int:
        """0 for the first."""
        return list(Origin).index(self)


_LONGEST_MESSAGE = 8192
"""Letters. All annotations of a Node together may have 256 KiB, and a letter up to 12 bytes in JSON."""


@dataclass(frozen=True, slots=True)
class Reboot:
    """A reboot that was asked for; it stands in the journal while it is under way, and in the status ever after."""

    layout: str
    """For what."""
    hash: str | None
    boot: str
    """Id of the boot that was to end."""
    at: str
    """When; RFC 3339."""

    @classmethod
    def from_values(cls, values: Mapping[str, Any] | None) -> Reboot | None:
        """As written, by a version that may know more of it. Raises KeyError or TypeError where it makes no sense."""
        if not values:
            return None
        asked = cls(values["layout"], values["hash"], values["boot"], values["at"])
        _must_be_words(asked.layout, asked.hash or "", asked.boot, asked.at)
        return asked


@dataclass(frozen=True, slots=True)
class Granted:
    """What was last applied for a label: as long as that stays, other content of its layout is an edit."""

    hash: str | None
    """Hash of what the layout meant."""
    gpus: str
    """Digest of what the GPUs were then."""

    @classmethod
    def of(cls, content: str | None, facts: str) -> Granted:
        """A layout of that hash was applied; `facts` are the GPUs as `gpu_facts` gives them."""
        return cls(content, hashlib.sha256(facts.encode()).hexdigest()[:16])


@dataclass(frozen=True, slots=True)
class Status:
    """The status annotation. Times are RFC 3339 in UTC, such as 2026-03-01T12:00:00Z."""

    layout: str
    state: State
    phase: Phase
    hash: str | None = None
    """Hash of what the layout means on this node; None before it is known."""
    origin: Origin | None = None
    reason: Reason | None = None
    message: str | None = None
    startedAt: str | None = None  # noqa: N815
    finishedAt: str | None = None  # noqa: N815
    attempt: int = 1
    nextRetryAt: str | None = None  # noqa: N815
    gpus: tuple[int, ...] = field(default=())
    """Indices of the GPUs that the run changes."""
    leaving: tuple[str, ...] = field(default=())
    """`namespace/name` of the pods that have to go for it, while they do; the first 100 of them."""
    edited: bool | None = None
    """True where only an edit of the layout asks for the run: what the label meant before had been applied."""
    reboot: Reboot | None = None
    """The one that was asked for to get this layout."""
    granted: Granted | None = None
    run: str | None = None
    """Id of the run, as on its log lines."""

    def to_json(self) -> str:
        """Compact JSON, keys in the order of the fields, absent values left out."""
        values = {name.name: getattr(self, name.name) for name in fields(self)}
        values["reboot"] = self.reboot and asdict(self.reboot)
        values["granted"] = self.granted and asdict(self.granted)
        return json.dumps({key: value for key, value in values.items() if value is not None and value != ()})

    @classmethod
    def from_json(cls, text: str | None) -> Status | None:
        """Read an annotation; None where there is none, or none that this version wrote."""
        try:
            values = json.loads(text or "null")
            known = {name.name for name in fields(cls)}
            kept: dict[str, Any] = {key: value for key, value in values.items() if key in known}
            kept["state"] = State(kept["state"])
            kept["phase"] = Phase(kept["phase"])
            kept["reason"] = Reason(kept["reason"]) if kept.get("reason") else None
            kept["origin"] = Origin(kept["origin"]) if kept.get("origin") else None
            kept["gpus"] = tuple(kept.get("gpus", ()))
            kept["leaving"] = tuple(map(str, kept.get("leaving", ())))
            kept["reboot"] = Reboot.from_values(kept.get("reboot"))
            granted = kept.get("granted")
            kept["granted"] = Granted(granted["hash"], granted["gpus"]) if granted else None
            _must_be_words(*(kept.get(key) or "" for key in _WORDS))
            if not isinstance(kept.get("attempt", 1), int):
                raise TypeError("an attempt has a number")
            return cls(**kept)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended."""

    state: State
    reason: Reason | None = None
    message: str | None = None
    phase: Phase = Phase.DONE
    """Where it failed; Done for a success."""

    @classmethod
    def of(cls, error: MigManagerError, phase: Phase) -> Outcome:
        """The outcome of a run that ended with that error in that phase."""
        return cls(State.FAILED, error.reason, error.message, phase)


_WORDS = ("layout", "hash", "message", "startedAt", "finishedAt", "nextRetryAt", "run")
"""The fields of a Status that are text, or absent."""


def _must_be_words(*values: object) -> None:
    """Raise TypeError where anything that was read is no text."""
    if not all(isinstance(value, str) for value in values):
        raise TypeError("text is expected")


def fitting(message: str) -> str:
    """A message that fits into the status annotation."""
    rest = len(message) - _LONGEST_MESSAGE
    return f"{message[:_LONGEST_MESSAGE]}... and {rest} letters more" if rest > 0 else message


def now() -> str:
    """The time, RFC 3339 in UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def strategy_of(labels: Mapping[str, str], default: str) -> str:
    """The device plugin's strategy on that node: the label of GPU feature discovery, else the setting."""
    return labels.get(STRATEGY_LABEL) or default
