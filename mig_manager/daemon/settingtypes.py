"""The types of settings: what an environment variable may hold, and how its text becomes a value.

A value that does not fit is a ValueError that says what is wanted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from mig_manager.daemon.windows import Window, parse_zone


def _from_json(value: object) -> object:
    """A list out of an environment variable."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise ValueError('a JSON list is wanted, such as ["a", "b"]') from None


def pool_limits(words: Iterable[str]) -> dict[str, int]:
    """`["a100=5", "h100=2"]` as a mapping. Raises ValueError for anything else."""
    limits = {}
    for word in words:
        pool, _, limit = word.rpartition("=")
        if not pool or not limit.isdigit():
            raise ValueError(f"{word!r}: a pool and its limit are wanted, such as 'a100=5'")
        limits[pool] = int(limit)
    return limits


_NODE_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def _node_name(text: str) -> None:
    """Raise ValueError where the API server has no Node by that name, and never will. Empty: none is set."""
    if not text or (len(text) <= 253 and _NODE_NAME.fullmatch(text)):
        return
    words = "the name of a Node is wanted: up to 253 lower-case letters, digits, '-' and '.'"
    near = text.strip().lower()
    near = f"; did you mean {near!r}?" if near != text and _NODE_NAME.fullmatch(near) else ""
    raise ValueError(f"{words}, as `valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}` gives it{near}")


def port_of(listen: str) -> int:
    """The port of an address to listen on; 0 for any. Raises ValueError if there is no such port."""
    port = listen.rpartition(":")[2]
    if port.isdigit() and int(port) > 65535:
        raise ValueError("the highest port is 65535")
    return int(port) if port.isdigit() else 0


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Takes a value as it is, if `check` takes it."""

    def checked(value: Any) -> Any:
        check(value)
        return value

    return AfterValidator(checked)


DriftMode = Literal["report", "repair"]
DrainMode = Literal["evict", "wait", "delete", "off"]
DrainScope = Literal["affected", "all"]
EditedLayouts = Literal["slot", "always", "report"]
Strategy = Literal["none", "single", "mixed"]
Seconds = Annotated[float, Field(gt=0)]
Words = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_from_json)]
Windows = Annotated[Words, _checked(lambda texts: [Window.parse(text) for text in texts])]
PoolLimits = Annotated[Words, _checked(pool_limits)]
NodeName = Annotated[str, _checked(_node_name)]
Zone = Annotated[str, _checked(parse_zone)]
Listen = Annotated[str, _checked(port_of)]
Commands = Annotated[tuple[tuple[str, ...], ...], NoDecode, BeforeValidator(_from_json)]
