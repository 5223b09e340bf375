"""The queries of dashboard and alerts, and what they ask of a scrape."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import promql_parser as promql
import yaml

from tests.shipped import ROOT

DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/dashboards/mig-manager.json").read_text())
ALERTS: dict[str, Any] = yaml.safe_load((ROOT / "deploy/alerts/mig-manager.yaml").read_text())

TARGET = frozenset({"instance", "job", "namespace", "node", "pod"})
"""Labels that the scrape adds; `node` by the relabelling of the PodMonitor."""

Scraped = Mapping[str, frozenset[str]]
"""Labels by metric."""


def panels() -> Iterator[tuple[str, str, str]]:
    """Title, query and legend of each curve of the dashboard."""
    for panel in DASHBOARD["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"].replace("$__rate_interval", "5m"), target["legendFormat"]


def alerts() -> Iterator[dict[str, Any]]:
    for group in ALERTS["spec"]["groups"]:
        yield from group["rules"]


def words() -> Iterator[tuple[str, str, frozenset[str]]]:
    """Title, query, and the labels that the words about its result name."""
    for title, query, legend in panels():
        yield title, query, frozenset(re.findall(r"{{(\w+)}}", legend))
    for alert in alerts():
        text = " ".join(alert["annotations"].values())
        yield alert["alert"], alert["expr"], frozenset(re.findall(r"{{ \$labels\.(\w+) }}", text))


def labels_of(query: Any, scraped: Scraped) -> frozenset[str]:
    """The labels of a query's result. Fails where it names a metric or a label that is not there."""
    match query:
        case promql.VectorSelector():
            name = query.name or ""
            assert name in scraped, f"no metric {name}"
            found = scraped[name] | TARGET
            _has(found, [each.name for each in query.matchers.matchers], name)
            return found
        case promql.MatrixSelector():
            return labels_of(query.vector_selector, scraped)
        case promql.ParenExpr() | promql.SubqueryExpr() | promql.UnaryExpr():
            return labels_of(query.expr, scraped)
        case promql.Call():
            vectors = [each for each in query.args if not isinstance(each, promql.NumberLiteral)]
            (found,) = (labels_of(each, scraped) for each in vectors)
            return found - {"le"} if query.func.name == "histogram_quantile" else found
        case promql.AggregateExpr():
            inside = labels_of(query.expr, scraped)
            kept = frozenset(query.modifier.labels if query.modifier is not None else ())
            _has(inside, kept, query.prettify())
            return kept
        case promql.BinaryExpr():
            sides = [each for each in (query.lhs, query.rhs) if not isinstance(each, promql.NumberLiteral)]
            found, *others = (labels_of(each, scraped) for each in sides)
            matching = query.modifier.matching if query.modifier is not None else None
            for each in (found, *others):
                _has(each, matching.labels if matching is not None else (), query.prettify())
            assert matching is not None or all(each == found for each in others), query.prettify()
            return found
    raise AssertionError(f"{type(query).__name__} is not expected")


def _has(found: frozenset[str], named: Any, where: str) -> None:
    assert frozenset(named) <= found, f"no label {sorted(frozenset(named) - found)}: {where}"


def check(scraped: Scraped) -> None:
    """Fail unless every query finds its metrics and labels, and what is said of its result has them too."""
    for title, query, named in words():
        missing = named - labels_of(promql.parse(query), scraped)
        assert not missing, f"{title}: the result has no label {sorted(missing)}"
