"""The layout file: `version: v1`, as nvidia-mig-parted reads it, strictly, with a line in every error."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from mig_manager.layouts.book import LayoutBook
from mig_manager.layouts.embedded import Place
from mig_manager.layouts.fields import Field, FieldReader, is_null, joined
from mig_manager.layouts.findings import Finding, LayoutFileError, clipped, hint
from mig_manager.layouts.layout import Devices, Layout, LayoutEntry, PciFilter, Source
from mig_manager.layouts.models import model_words
from mig_manager.layouts.profile import MigProfile, ProfileSyntaxError
from mig_manager.layouts.selectors import guess_filter, parse_bus_id, parse_filter, parse_uuid
from mig_manager.layouts.suggest import guess_profile, nearest
from mig_manager.layouts.yamltext import ListNode, MappingNode, Node, ScalarNode, compose, read_text

__all__ = ["Finding", "LayoutFileError", "parse_layouts", "read_layouts"]

_FILE_KEYS = ("version", "mig-configs")
_ENTRY_KEYS = ("devices", "device-filter", "gpu-model", "mig-enabled", "mig-devices")
_MOST_DEVICES = 99
_TRUE = frozenset({"true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"})
_FALSE = frozenset({"false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"})
_MODEL_NAME = re.compile("[A-Za-z]{1,3}[0-9]{2,4}(?![0-9A-Fa-f])")
_INDEX = re.compile(r"0|[1-9][0-9]{0,5}")
_COUNT = re.compile(r"[0-9]{1,6}")
_DEVICES = "all, others, or a list of GPU indices, UUIDs (GPU-...) and PCI bus ids"
_FILTERS = (
    "a PCI device id such as 0x20B010DE, or 0x20B010DE:0x134F10DE with a subsystem id, or a list of them"
)
_PROFILES = "a mapping of profiles to counts, such as {1g.10gb: 7}, or {} for no MIG devices"
_COUNTS = f"a count from 0 to {_MOST_DEVICES}"
_LONGEST_PROFILE = 60
_MODELS = "a product name such as A100-SXM4-80GB, or a list of them"


def parse_layouts(text: str, *, file: str, place: Place | None = None) -> LayoutBook:
    """Read the text of a layout file; `file` names it in messages. `place`: where in that file the text stands.

    Raises:
        LayoutFileError: what is wrong with it; all findings, each with its line.
    """
    root = compose(text, file, place)
    reader = _Reader(file, first_line=place.line(1) if place is not None else 1)
    layouts = reader.layouts_of(root)
    if reader.findings:
        raise LayoutFileError(reader.findings)
    return LayoutBook({layout.name: layout for layout in layouts}, file)


def read_layouts(path: Path) -> LayoutBook:
    """Read a layout file.

    Raises:
        LayoutFileError: it cannot be read, is not UTF-8 text, or something is wrong with what it says.
    """
    return parse_layouts(read_text(path), file=str(path))


@dataclass(slots=True)
class _Reader(FieldReader):
    """Reads the nodes of a layout file. An entry that aliases reach again is read once."""

    entries: dict[int, LayoutEntry | None] = field(default_factory=dict)
    first_line: int = 1

    def layouts_of(self, root: Node | None) -> list[Layout]:
        if root is None or is_null(root):
            self.wrong(
                self.first_line, "", "the file is empty; a layout file has version: v1 and mig-configs"
            )
            return []
        if not isinstance(root, MappingNode):
            self.not_allowed(root, root.line, "", "a mapping with version and mig-configs")
            return []
        fields = self.fields(root, "")
        self.unknown_keys(fields, _FILE_KEYS, "")
        version = fields.get("version")
        if version is None:
            self.wrong(root.line, "version", "is missing; allowed: v1")
        elif not (isinstance(version.value, ScalarNode) and version.value.text == "v1"):
            self.not_allowed(version.value, version.line, "version", "v1")
        configs = fields.get("mig-configs")
        if configs is None:
            self.wrong(root.line, "mig-configs", "is missing; it maps layout names to lists of entries")
            return []
        return self.layouts(configs)

    def layouts(self, configs: Field) -> list[Layout]:
        node = configs.value
        if not isinstance(node, MappingNode) or not node.pairs:
            self.not_allowed(
                node, configs.line, "mig-configs", "a mapping of layout names to lists of entries"
            )
            return []
        layouts = []
        for name, found in self.fields(node, "mig-configs").items():
            path = joined("mig-configs", name)
            if not name:
                self.wrong(found.key.line, path, "a layout needs a name")
            if isinstance(found.value, ListNode) and found.value.items:
                read = [
                    self.entry(item, f"{path}[{at}]") for at, item in enumerate(self.items(found.value, path))
                ]
                entries = tuple(entry for entry in read if entry is not None)
                layouts.append(Layout(name, entries, Source(self.file, found.key.line)))
            else:
                self.not_allowed(
                    found.value, found.line, path, "a list with at least one entry, each after a dash"
                )
        return layouts

    def entry(self, node: Node, path: str) -> LayoutEntry | None:
        if id(node) not in self.entries:
            self.entries[id(node)] = self.new_entry(node, path)
        return self.entries[id(node)]

    def new_entry(self, node: Node, path: str) -> LayoutEntry | None:
        if not isinstance(node, MappingNode):
            self.not_allowed(node, node.line, path, "an entry with devices and mig-enabled")
            return None
        before = len(self.findings)
        fields = self.fields(node, path)
        self.unknown_keys(fields, _ENTRY_KEYS, path)
        devices = self.devices(fields.get("devices"), f"{path}.devices")
        filters = self.filters(fields.get("device-filter"), f"{path}.device-filter")
        models = self.models(fields.get("gpu-model"), f"{path}.gpu-model")
        enabled = self.enabled(fields.get("mig-enabled"), f"{path}.mig-enabled")
        profiles = self.profiles(fields.get("mig-devices"), f"{path}.mig-devices", enabled)
        for key in ("devices", "mig-enabled"):
            if key not in fields:
                self.wrong(node.line, f"{path}.{key}", "is missing; every entry needs it")
        if enabled and "mig-devices" not in fields:
            text = "is missing; an entry with mig-enabled: true needs it, {} for no MIG devices"
            self.wrong(node.line, f"{path}.mig-devices", text)
        if enabled is False and profiles:
            text = "asks for MIG devices, but mig-enabled is false; leave one of the two out"
            self.wrong(fields["mig-devices"].key.line, f"{path}.mig-devices", text)
        if enabled is None or len(self.findings) > before:
            return None
        return LayoutEntry(devices, filters, models, enabled, profiles, Source(self.file, node.line))

    def devices(self, found: Field | None, path: str) -> Devices:
        if found is None:
            return ()
        node = found.value
        if isinstance(node, ScalarNode) and node.text == "all":
            return "all"
        if isinstance(node, ScalarNode) and node.text == "others":
            return "others"
        if isinstance(node, ListNode):
            read = [
                self.device(item, item.line, f"{path}[{at}]")
                for at, item in enumerate(self.items(node, path))
            ]
        else:
            read = [self.device(node, found.line, path)]
        return tuple(dict.fromkeys(device for device in read if device is not None))

    def device(self, node: Node, line: int, path: str) -> int | str | None:
        if not isinstance(node, ScalarNode) or is_null(node):
            self.not_allowed(node, line, path, _DEVICES)
            return None
        if node.plain and _INDEX.fullmatch(node.text):
            return int(node.text)
        device = parse_uuid(node.text) or parse_bus_id(node.text)
        if device is None:
            self.not_allowed(node, line, path, _DEVICES, _device_hint(node.text))
        return device

    def filters(self, found: Field | None, path: str) -> tuple[PciFilter, ...]:
        filters = []
        for node, place in self.texts(found, path, _FILTERS):
            read = parse_filter(node.text)
            if read is None:
                self.not_allowed(node, node.line, place, _FILTERS, _filter_hint(node.text))
            else:
                filters.append(read)
        return tuple(dict.fromkeys(filters))

    def models(self, found: Field | None, path: str) -> tuple[str, ...]:
        models = []
        for node, place in self.texts(found, path, _MODELS):
            if model_words(node.text):
                models.append(node.text)
            else:
                self.not_allowed(node, node.line, place, _MODELS)
        return tuple(dict.fromkeys(models))

    def texts(self, found: Field | None, path: str, allowed: str) -> list[tuple[ScalarNode, str]]:
        """The scalars of a text or a list of texts, each with its path. None for an empty text: no filter."""
        if found is None or is_null(found.value):
            return []
        if isinstance(found.value, ScalarNode):
            return [(found.value, path)] if found.value.text else []
        if isinstance(found.value, MappingNode):
            self.not_allowed(found.value, found.line, path, allowed)
            return []
        texts = []
        for at, item in enumerate(self.items(found.value, path)):
            if isinstance(item, ScalarNode) and not is_null(item):
                texts.append((item, f"{path}[{at}]"))
            else:
                self.not_allowed(item, item.line, f"{path}[{at}]", allowed)
        return texts

    def enabled(self, found: Field | None, path: str) -> bool | None:
        if found is None:
            return None
        node = found.value
        if isinstance(node, ScalarNode):
            if node.plain and node.text in _TRUE | _FALSE:
                return node.text in _TRUE
            tail = _without_quotes(node) or hint(nearest(node.text, ("true", "false"), 1))
            self.not_allowed(node, found.line, path, "true, false", tail)
        else:
            self.not_allowed(node, found.line, path, "true, false")
        return None

    def profiles(
        self, found: Field | None, path: str, enabled: bool | None
    ) -> tuple[tuple[MigProfile, int], ...]:
        if found is None or (is_null(found.value) and enabled is False):
            return ()
        if not isinstance(found.value, MappingNode):
            self.not_allowed(found.value, found.line, path, _PROFILES)
            return ()
        counts: dict[MigProfile, int] = {}
        written: dict[MigProfile, str] = {}
        for text, entry in self.fields(found.value, path).items():
            place = joined(path, text)
            count = self.count(entry, place)
            profile = _profile(text)
            if isinstance(profile, str):
                self.wrong(entry.key.line, place, profile)
            elif profile in written:
                self.wrong(entry.key.line, place, f"is the same profile as {written[profile]}; write it once")
            else:
                written[profile], counts[profile] = text, count
        if sum(counts.values()) > _MOST_DEVICES:
            self.wrong(
                found.key.line, path, f"asks for more than {_MOST_DEVICES} MIG devices; no GPU has as many"
            )
        return tuple((profile, counts[profile]) for profile in sorted(counts) if counts[profile])

    def count(self, entry: Field, path: str) -> int:
        node = entry.value
        if isinstance(node, ScalarNode):
            if node.plain and _COUNT.fullmatch(node.text) and int(node.text) <= _MOST_DEVICES:
                return int(node.text)
            self.not_allowed(node, entry.line, path, _COUNTS, _without_quotes(node))
        else:
            self.not_allowed(node, entry.line, path, _COUNTS)
        return 0


def _profile(text: str) -> MigProfile | str:
    """The profile of that name, or what is wrong with it."""
    if len(text) > _LONGEST_PROFILE:
        return f"{clipped(text)} is not a profile name such as 1g.10gb, 1c.3g.20gb, 1g.10gb+me"
    try:
        return MigProfile.parse(text)
    except ProfileSyntaxError as error:
        guess = guess_profile(text)
        return f"{error}{hint([guess] if guess else [])}"


def _without_quotes(node: ScalarNode) -> str:
    meant = not node.plain and (node.text in _TRUE | _FALSE or _COUNT.fullmatch(node.text))
    return f"; did you mean {node.text}, without quotes?" if meant else ""


def _device_hint(text: str) -> str:
    word = text.strip()
    if word.upper().startswith("MIG-"):
        return "; a MIG device cannot be selected, only its GPU"
    if re.fullmatch(r"[0-9]{1,6}(?:[\s,]+[0-9]{1,6})+", word):
        return f"; did you mean [{', '.join(re.findall('[0-9]+', word))}]?"
    if _INDEX.fullmatch(word):
        return f"; did you mean {word}, without quotes?"
    return hint(nearest(word, ("all", "others"), 1))


def _filter_hint(text: str) -> str:
    guess = guess_filter(text)
    # Hex digits too can spell a model (A100, B200), and no device id of a GPU with MIG begins with a letter.
    if _MODEL_NAME.match(text.strip()) or (guess is None and re.search("[g-wyzG-WYZ]", text)):
        return "; a model name belongs in gpu-model"
    return hint([guess] if guess else [])
