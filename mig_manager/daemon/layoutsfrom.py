"""Where the layouts of a node come from, for people and tools that have no access to it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

from mig_manager.daemon.settings import Settings

_NAMES = {"configMap": "config_map", "key": "key", "file": "file", "defaultFile": "default_file"}
"""Of the fields, in the annotation."""


@dataclass(frozen=True, slots=True)
class LayoutsFrom:
    """The annotation mig-manager/layouts-from. What no file defines is generated from the node's GPUs."""

    config_map: str = ""
    """`namespace/name`; empty where a file of the node takes its place."""
    key: str = ""
    """The key of the ConfigMap."""
    file: str = ""
    """CONFIG_FILE, a path in the daemon's container."""
    default_file: str = ""
    """DEFAULT_CONFIG_FILE; for names that the first has not."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """As the daemon is set."""
        default = str(settings.default_config_file or "")
        if settings.config_file is not None:
            return cls(file=str(settings.config_file), default_file=default)
        place = f"{settings.layouts_namespace}/{settings.config_map_name}"
        return cls(place, settings.config_map_key, default_file=default)

    def to_json(self) -> str:
        """The annotation's value."""
        values = asdict(self)
        return json.dumps({name: values[field] for name, field in _NAMES.items() if values[field]})

    @classmethod
    def from_json(cls, text: str | None) -> Self | None:
        """Read an annotation; None where there is none that can be read."""
        try:
            values = json.loads(text or "null")
            found = cls(**{_NAMES[name]: str(value) for name, value in values.items() if name in _NAMES})
        except (ValueError, TypeError, AttributeError):
            return None
        return found if found.config_map.count("/") == 1 or found.file else None
