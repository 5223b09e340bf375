"""Metrics for Prometheus: what the Node says, and what this process has counted.

They are made when somebody asks, and no request is sent for them. The library is imported by then, so that the start
of the daemon does not wait for it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from mig_manager import __version__
from mig_manager.cluster.objects import NodeMeta
from mig_manager.daemon.counts import Counts, Labels
from mig_manager.daemon.http import Answer
from mig_manager.daemon.journal import Journal
from mig_manager.daemon.measures import (
    BUILD,
    CORDONED,
    CURRENT_LAYOUT,
    DRIFT,
    GPU_INSTANCES,
    GPUS,
    INSTANCES,
    MEASURES,
    PHASE,
    RUNS,
    START_TIME,
    STATE,
    WAITING_FOR_SLOT,
    WANTED_LAYOUT,
    Measure,
)
from mig_manager.daemon.progress import Progress
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    GPUS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Phase,
    State,
    Status,
)
from mig_manager.errors import Reason

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Values = Mapping[Labels, float]

_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
"""The one that every version of Prometheus reads."""


class Metrics:
    """A collector; see prometheus_client."""

    def __init__(self, node: Callable[[], NodeMeta | None], counts: Counts, progress: Progress) -> None:
        """`node` gives the Node's metadata as last seen; None while there is no such Node."""
        self._node = node
        self._counts = counts
        self._progress = progress
        self._started = time.time()
        # What happens seldom is seen to happen only if it was zero before.
        counts.add(RUNS, State.SUCCESS, "", amount=0)
        for reason in Reason:
            counts.add(RUNS, State.FAILED, reason, amount=0)
        for action in ("kept", "created", "destroyed"):
            counts.add(INSTANCES, action, amount=0)

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        gauges = self._gauges()
        for measure in MEASURES:
            match measure.kind:
                case "gauge":
                    yield _gauge(measure, gauges.get(measure, {}))
                case "counter":
                    yield self._counter(measure)
                case "histogram":
                    yield self._histogram(measure)

    def _gauges(self) -> dict[Measure, Values]:
        phase = self._progress.phase
        values: dict[Measure, Values] = {
            BUILD: {(__version__,): 1},
            START_TIME: {(): self._started},
            PHASE: {} if phase is None else {(phase,): 1},
            WAITING_FOR_SLOT: {(): phase is Phase.WAITING_FOR_SLOT},
        }
        meta = self._node()
        return values if meta is None else values | _of_node(meta, self._progress.applied)

    def _counter(self, measure: Measure) -> Metric:
        from prometheus_client.metrics_core import CounterMetricFamily

        family = CounterMetricFamily(measure.name, measure.help, labels=measure.labels)
        totals = self._counts.totals(measure)
        for labels, count in totals.items() if measure.labels else [((), totals.get((), 0))]:
            family.add_metric(labels, count)
        return family

    def _histogram(self, measure: Measure) -> Metric:
        from prometheus_client.metrics_core import HistogramMetricFamily

        family = HistogramMetricFamily(measure.name, measure.help, labels=measure.labels)
        bounds = [*map(str, measure.buckets), "+Inf"]
        for labels, spread in self._counts.spreads(measure).items():
            buckets = list(zip(bounds, spread.cumulated, strict=True))
            family.add_metric(labels, buckets, spread.total)
        return family


def _gauge(measure: Measure, values: Values) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(measure.name, measure.help, labels=measure.labels)
    for labels, value in values.items():
        family.add_metric(labels, value)
    return family


def _of_node(meta: NodeMeta, applied: str) -> dict[Measure, Values]:
    """What the Node says; `applied` is the layout that it may speak of no more."""
    said = meta.labels.get(STATE_LABEL)
    wanted = meta.labels.get(CONFIG_LABEL)
    status = Status.from_json(meta.annotations.get(STATUS_ANNOTATION))
    current = status.layout if status is not None and status.state is State.SUCCESS else applied
    journal = Journal.from_annotations(meta.annotations)
    gpus, instances = _hardware(meta.annotations.get(GPUS_ANNOTATION))
    return {
        STATE: {(state,): said == state for state in State},
        WANTED_LAYOUT: {(wanted,): 1} if wanted else {},
        CURRENT_LAYOUT: {(current,): 1} if current else {},
        DRIFT: {(): status is not None and status.reason is Reason.DRIFTED},
        CORDONED: {(): journal is not None and journal.cordoned},
        GPUS: gpus,
        GPU_INSTANCES: instances,
    }


def _hardware(facts: str | None) -> tuple[Values, Values]:
    """GPUs by model and mode, instances by model and profile; nothing of an annotation that is not ours."""
    gpus: Counter[Labels] = Counter()
    instances: Counter[Labels] = Counter()
    modes = {True: "on", False: "off", None: "none"}
    try:
        for gpu in json.loads(facts or "[]"):
            gpus[str(gpu["model"]), modes[gpu["mig"]]] += 1
            instances.update((str(gpu["model"]), str(one["profile"])) for one in gpu["instances"])
    except (ValueError, KeyError, TypeError):
        return {}, {}
    return gpus, instances


def exposition(metrics: Metrics) -> Answer:
    """A scrape: the metrics, and those of the process that every exporter has (memory, processor time, files)."""
    from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(metrics)
    ProcessCollector(registry=registry)
    return Answer(generate_latest(registry), content_type=_FORMAT)
