"""`helm` with this project's own chart, as Helm's engine renders it; nothing is installed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import helm_python
import yaml

from deploy.generate import CHART, ROOT, render


class ChartError(Exception):
    """Helm refuses the chart with these values."""


def helm(words: Sequence[str], home: Path) -> str:
    """`helm install NAME CHART` or `helm template CHART`: the manifests, for `template` only.

    Raises:
        ChartError: the values do not fit.
    """
    parser = argparse.ArgumentParser(prog="helm", exit_on_error=False)
    parser.add_argument("command", choices=["install", "template"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("-n", "--namespace", default="default")
    parser.add_argument("-f", "--values", action="append", default=[])
    parser.add_argument("--create-namespace", action="store_true")
    parser.add_argument("--set", action="append", default=[])
    parser.add_argument("--set-file", action="append", default=[])
    given = parser.parse_args(list(words))
    assert ROOT / given.names[-1] == CHART
    values: dict[str, Any] = {}
    for file in given.values:
        values |= yaml.safe_load((home / file).read_text())
    for each in given.set:
        path, _, text = each.partition("=")
        _put(values, path, yaml.safe_load(text))
    for each in given.set_file:
        path, _, file = each.partition("=")
        _put(values, path, (home / file).read_text())
    try:
        objects = render(values, given.namespace)
    except helm_python.HelmError as error:
        raise ChartError(str(error)) from error
    return yaml.safe_dump_all(objects) if given.command == "template" else ""


def _put(values: dict[str, Any], path: str, value: object) -> None:
    *above, key = path.split(".")
    for each in above:
        values = values.setdefault(each, {})
    values[key] = value
