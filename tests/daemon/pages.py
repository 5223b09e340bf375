"""What a daemon's pages say."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.daemon.node import GpuNode

_AT = re.compile(r"pages on (http://[0-9.:]+):")


def page(node: GpuNode, path: str) -> tuple[int, str]:
    """Status and body of a page of the daemon that was started last."""
    (*_, at) = _AT.findall(node.log.read_text())
    try:
        with urllib.request.urlopen(f"{at}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def samples(node: GpuNode) -> list[Sample]:
    """A scrape, as Prometheus understands it."""
    status, text = page(node, "/metrics")
    assert status == 200
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


def scrape(node: GpuNode) -> dict[str, float]:
    """Our own metrics, by name and label values, in the order of the labels' names: `runs_total Drifted failed`."""
    return {
        " ".join((each.name.removeprefix("mig_manager_"), *filter(None, each.labels.values()))): each.value
        for each in samples(node)
        if each.name.startswith("mig_manager_")
    }
