"""The list of GPU clients, as an administrator writes it in YAML."""

from __future__ import annotations

from pathlib import Path

from mig_manager.cluster.operands import Operand, Role
from mig_manager.errors import MigManagerError
from mig_manager.layouts.fields import Field, FieldReader, joined, shown
from mig_manager.layouts.findings import Finding, LayoutFileError, hint
from mig_manager.layouts.layout import Source
from mig_manager.layouts.suggest import nearest
from mig_manager.layouts.yamltext import ListNode, MappingNode, Node, ScalarNode, compose

_FILE_KEYS = ("version", "operands")
_KEYS = ("name", "role", "label", "pods", "container", "namespaces", "holds-gpus")
_TRUTHS = {"true": True, "false": False}


class OperandFileError(MigManagerError):
    """A list of GPU clients that cannot be used. The message holds one line a finding, by file line."""


def read_operands(path: Path, namespace: str | None) -> tuple[Operand, ...]:
    """Read a list of GPU clients; `namespace` is where those that name none have their pods (None: anywhere).

    Raises:
        OperandFileError: the file cannot be read, or something is wrong with what it says.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        finding = Finding(Source(str(path), 1), "", f"cannot be read: {why}")
        raise _refused(LayoutFileError([finding])) from error
    return parse_operands(text, file=str(path), namespace=namespace)


def parse_operands(text: str, *, file: str, namespace: str | None) -> tuple[Operand, ...]:
    """Read the text of such a list; `file` names it in messages. Raises OperandFileError."""
    reader = _Reader(file)
    try:
        found = reader.operands(compose(text, file), namespace)
        if reader.findings:
            raise LayoutFileError(reader.findings)
    except LayoutFileError as error:
        raise _refused(error) from None
    return found


def _refused(error: LayoutFileError) -> OperandFileError:
    return OperandFileError(error.reason, error.message)


class _Reader(FieldReader):
    def operands(self, root: Node | None, namespace: str | None) -> tuple[Operand, ...]:
        if not isinstance(root, MappingNode):
            self.wrong(1, "", "the file must be a mapping with the keys version and operands")
            return ()
        fields = self.fields(root, "")
        self.unknown_keys(fields, _FILE_KEYS, "")
        if (version := self._text(fields, "version", "")) != "v1":
            line = fields["version"].line if "version" in fields else root.line
            self.wrong(line, "version", f"found {version or 'nothing'}; allowed: v1")
        entries = fields["operands"].value if "operands" in fields else None
        if not isinstance(entries, ListNode):
            self.wrong(root.line, "operands", "must be a list of GPU clients")
            return ()
        found: dict[str, Operand] = {}
        for number, entry in enumerate(self.items(entries, "operands")):
            path = f"operands[{number}]"
            operand = self._operand(entry, path, namespace)
            if operand is not None and operand.name in found:
                self.wrong(entry.line, joined(path, "name"), f"{operand.name} stands in the list twice")
            elif operand is not None:
                found[operand.name] = operand
        return tuple(found.values())

    def _operand(self, node: Node, path: str, namespace: str | None) -> Operand | None:
        if not isinstance(node, MappingNode):
            self.not_allowed(node, node.line, path, f"a mapping of {', '.join(_KEYS)}")
            return None
        fields = self.fields(node, path)
        self.unknown_keys(fields, _KEYS, path)
        name = self._text(fields, "name", path)
        label = self._text(fields, "label", path)
        pods = self._labels(fields, path)
        if not name:
            self.wrong(node.line, joined(path, "name"), "is missing; give the GPU client a name")
        if not label and not pods:
            self.wrong(node.line, path, "has neither label nor pods: nothing says which pods are meant")
        where = self._texts(fields, "namespaces", path)
        default = None if namespace is None else (namespace,)
        return Operand(
            name=name or path,
            label=label,
            selector=pods,
            namespaces=default if where is None else where or None,
            role=self._role(fields, path),
            container=self._text(fields, "container", path),
            holds_gpus=self._truth(fields, "holds-gpus", path, True),
        )

    def _role(self, fields: dict[str, Field], path: str) -> Role:
        text = self._text(fields, "role", path) or Role.CLIENT
        allowed = [str(role) for role in Role]
        if text in allowed:
            return Role(text)
        near = hint(nearest(text, allowed, 1))
        place = joined(path, "role")
        self.wrong(fields["role"].line, place, f"found {text}; allowed: {', '.join(allowed)}{near}")
        return Role.CLIENT

    def _labels(self, fields: dict[str, Field], path: str) -> dict[str, str]:
        place = joined(path, "pods")
        node = fields["pods"].value if "pods" in fields else None
        if node is None:
            return {}
        allowed = "a mapping of pod labels to values, such as {app: my-plugin}"
        if not isinstance(node, MappingNode):
            self.not_allowed(node, fields["pods"].line, place, allowed)
            return {}
        found = {}
        for key, entry in self.fields(node, place).items():
            if isinstance(entry.value, ScalarNode):
                found[key] = entry.value.text
            else:
                self.not_allowed(entry.value, entry.line, joined(place, key), "a value of the label")
        return found

    def _text(self, fields: dict[str, Field], key: str, path: str) -> str | None:
        if key not in fields:
            return None
        value = fields[key].value
        if not isinstance(value, ScalarNode) or not value.text:
            self.wrong(fields[key].line, joined(path, key), f"found {shown(value)}; allowed: text")
            return None
        return value.text

    def _texts(self, fields: dict[str, Field], key: str, path: str) -> tuple[str, ...] | None:
        if key not in fields:
            return None
        node, place = fields[key].value, joined(path, key)
        if not isinstance(node, ListNode):
            self.not_allowed(node, fields[key].line, place, "a list of namespaces; [] for any")
            return None
        items = self.items(node, place)
        return tuple(item.text for item in items if isinstance(item, ScalarNode))

    def _truth(self, fields: dict[str, Field], key: str, path: str, default: bool) -> bool:
        text = self._text(fields, key, path)
        if text is None:
            return default
        if text not in _TRUTHS:
            self.wrong(fields[key].line, joined(path, key), f"found {text}; allowed: true, false")
        return _TRUTHS.get(text, default)
