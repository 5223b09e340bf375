"""The file that names GPU clients on the host, in NVIDIA's format: `version: v1`, `systemd-services: [...]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mig_manager.errors import MigManagerError, Reason
from mig_manager.layouts.fields import Field, FieldReader, is_null
from mig_manager.layouts.findings import LayoutFileError, hint
from mig_manager.layouts.suggest import nearest
from mig_manager.layouts.yamltext import ListNode, MappingNode, Node, ScalarNode, compose, read_text

_KEYS = ("version", "systemd-services")
_KINDS = (
    *("service", "socket", "target", "timer", "path", "mount", "automount", "swap", "device"),
    *("slice", "scope"),
)
_NAME = re.compile(rf"[A-Za-z0-9:_.\\@-]+\.(?:{'|'.join(_KINDS)})")
_LONGEST = 255
_UNITS = "the full name of a systemd unit, such as nvidia-dcgm.service"
_SERVICES = "a list of systemd units, such as [nvidia-dcgm.service]"


def read_services(path: Path) -> tuple[str, ...]:
    """The systemd units that a file lists, in its order, each once.

    Raises:
        MigManagerError: HostServiceError; the file cannot be read, or something is wrong with what it says.
    """
    try:
        return parse_services(read_text(path), file=str(path))
    except LayoutFileError as error:
        message = f"The list of host services cannot be used: {error.message}"
        raise MigManagerError(Reason.HOST_SERVICE_ERROR, message) from None


def parse_services(text: str, *, file: str) -> tuple[str, ...]:
    """The units that a text lists; `file` names it in messages. No key or an empty list: none.

    Raises:
        LayoutFileError: what is wrong with it; all findings, each with its line.
    """
    reader = _Reader(file)
    services = reader.services_of(compose(text, file))
    if reader.findings:
        raise LayoutFileError(reader.findings)
    return services


@dataclass(slots=True)
class _Reader(FieldReader):
    def services_of(self, root: Node | None) -> tuple[str, ...]:
        if root is None or is_null(root):
            self.wrong(1, "", "the file is empty; it has version: v1 and systemd-services")
            return ()
        if not isinstance(root, MappingNode):
            self.not_allowed(root, root.line, "", "a mapping with version and systemd-services")
            return ()
        fields = self.fields(root, "")
        self.unknown_keys(fields, _KEYS, "")
        version = fields.get("version")
        if version is None:
            self.wrong(root.line, "version", "is missing; allowed: v1")
        elif not (isinstance(version.value, ScalarNode) and version.value.text == "v1"):
            self.not_allowed(version.value, version.line, "version", "v1")
        return self.services(fields.get("systemd-services"))

    def services(self, found: Field | None) -> tuple[str, ...]:
        path = "systemd-services"
        if found is None or is_null(found.value):
            return ()
        if not isinstance(found.value, ListNode):
            self.not_allowed(found.value, found.line, path, _SERVICES)
            return ()
        names = []
        for at, item in enumerate(self.items(found.value, path)):
            if isinstance(item, ScalarNode) and _is_unit(item.text):
                names.append(item.text)
            else:
                tail = _meant(item.text) if isinstance(item, ScalarNode) else ""
                self.not_allowed(item, item.line, f"{path}[{at}]", _UNITS, tail)
        return tuple(dict.fromkeys(names))


def _is_unit(text: str) -> bool:
    """Whether systemd takes it for the name of a unit that can run; a template without instance cannot."""
    return len(text) <= _LONGEST and _NAME.fullmatch(text) is not None and "@." not in text


def _meant(text: str) -> str:
    """The tail of a message that offers the name that was meant."""
    if _is_unit(f"{text}.service") and text.rpartition(".")[2] not in _KINDS:
        stem, dot, kind = text.rpartition(".")
        near = nearest(kind, _KINDS, 1) if dot else ()
        return hint([f"{stem}.{one}" for one in near] or [f"{text}.service"])
    if "@." in text:
        return "; a template runs only with an instance, such as " + text.replace("@.", "@0.", 1)
    return ""
