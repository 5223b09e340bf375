"""JSON files that people write or keep: read with the place of every value, so that mistakes can name it."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from mig_manager.cli.errors import InputError
from mig_manager.layouts.suggest import nearest


class _Pairs(list[tuple[str, object]]):
    """A JSON object as it stands in the file, with duplicate keys."""


@dataclass(frozen=True, slots=True)
class Field:
    """A value and where it stands."""

    value: object
    place: str
    """Such as `gpus[1].instances[0].start`; empty for the whole file."""
    file: str

    def fail(self, problem: str) -> NoReturn:
        """End with what is wrong with this value."""
        raise InputError(f"{self.file}: {self.place or 'top level'}: {problem}")

    def mapping(
        self, *, required: Sequence[str], optional: Sequence[str] = (), any_case: bool = False
    ) -> dict[str, Field]:
        """The fields of an object by their known names; `any_case`: capitals in the keys do not matter."""
        if not isinstance(self.value, _Pairs):
            self.wrong("an object")
        known = (*required, *optional)
        names = {name.lower() if any_case else name: name for name in known}
        fields: dict[str, Field] = {}
        for written, value in self.value:
            key = names.get(written.lower() if any_case else written)
            if key is None:
                near = _did_you_mean(written, known)
                self.fail(f"unknown key {written!r}; {near}known: {', '.join(known)}")
            if key in fields:
                self.fail(f"has the key {key!r} twice")
            fields[key] = Field(value, f"{self.place}.{key}" if self.place else key, self.file)
        missing = [key for key in required if key not in fields]
        if missing:
            self.fail(f"has no {' and no '.join(map(repr, missing))}")
        return fields

    def items(self) -> list[Field]:
        """The items of a list."""
        if not isinstance(self.value, list) or isinstance(self.value, _Pairs):
            self.wrong("a list")
        return [Field(item, f"{self.place}[{index}]", self.file) for index, item in enumerate(self.value)]

    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            self.wrong("a text")
        return self.value

    def whole(self) -> int:
        """A number that counts or names something."""
        if not isinstance(self.value, int) or isinstance(self.value, bool) or self.value < 0:
            self.wrong("a whole number, 0 or more")
        return self.value

    def flag(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            self.wrong("true or false")
        return self.value

    def wrong(self, allowed: str) -> NoReturn:
        """End with what was found instead of what is allowed."""
        if isinstance(self.value, list):
            found = "an object" if isinstance(self.value, _Pairs) else "a list"
        else:
            found = json.dumps(self.value)
        self.fail(f"found {found}; allowed is {allowed}")


def read_text(path: Path) -> tuple[str, str]:
    """The text of a file, and what the file is called in messages; `-` is stdin.

    Raises:
        InputError: it cannot be read.
    """
    file = "stdin" if path == Path("-") else str(path)
    try:
        return (sys.stdin.read() if file == "stdin" else path.read_text("utf-8")), file
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{file}: is not text in UTF-8: {error.reason} at byte {error.start}") from error


def parse_json(text: str, *, file: str, made_by: str) -> Field:
    """The root of a JSON text.

    Args:
        text: the JSON.
        file: its name in messages.
        made_by: the command that prints such a file, for messages.

    Raises:
        InputError: the text is not JSON.
    """
    try:
        return Field(json.loads(text, object_pairs_hook=_Pairs), "", file)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: is not JSON: {error}; `{made_by}` makes such a file") from error


def _did_you_mean(word: str, choices: Sequence[str]) -> str:
    near = nearest(word, choices, 1)
    return f"did you mean {near[0]!r}? " if near else ""
