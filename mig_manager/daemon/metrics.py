"""Metrics for Prometheus: what the Node says, and how the runs of this process ended.

They are made when somebody asks; between two scrapes nothing is counted but runs. The library is imported by the
thread that listens, so that the start of the daemon does not wait for it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from loguru import logger

from mig_manager import __version__
from mig_manager.cluster.objects import NodeMeta
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    STATE_LABEL,
    STATUS_ANNOTATION,
    Outcome,
    State,
    Status,
)
from mig_manager.errors import Reason

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric


class Metrics:
    """A collector; see prometheus_client."""

    def __init__(self, node: Callable[[], NodeMeta | None]) -> None:
        """`node` gives the Node's metadata as last seen; None while there is no such Node."""
        self._node = node
        self._runs: Counter[tuple[str, str]] = Counter()

    def ended(self, outcome: Outcome) -> None:
        """Count a run by its end."""
        self._runs[outcome.state, outcome.reason or ""] += 1

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        from prometheus_client.metrics_core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            InfoMetricFamily,
        )

        yield InfoMetricFamily("mig_manager_build", "The daemon.", {"version": __version__})
        runs = CounterMetricFamily(
            "mig_manager_runs", "Runs of this process by state and reason.", labels=("state", "reason")
        )
        for labels, count in self._runs.copy().items():
            runs.add_metric(labels, count)
        yield runs
        meta = self._node()
        if meta is None:
            return
        said = meta.labels.get(STATE_LABEL)
        states = GaugeMetricFamily(
            "mig_manager_state", "1 for the state that the Node's label says.", labels=("state",)
        )
        for state in State:
            states.add_metric((state,), said == state)
        yield states
        status = Status.from_json(meta.annotations.get(STATUS_ANNOTATION))
        layout = GaugeMetricFamily(
            "mig_manager_layout",
            "1, with the layout that the Node's label wants and the one that its status speaks of.",
            labels=("wanted", "said"),
        )
        layout.add_metric((meta.labels.get(CONFIG_LABEL, ""), status.layout if status else ""), 1)
        yield layout
        drifted = status is not None and status.reason is Reason.DRIFTED
        yield GaugeMetricFamily(
            "mig_manager_drift", "1 while the GPUs are known to differ from what was applied.", value=drifted
        )


def expose(metrics: Metrics, listen: str) -> None:
    """Answer scrapes, in threads of their own; where that is not possible, it is said and all else goes on.

    `listen`: address and port, `0.0.0.0:9400` or `[::]:9400`.
    """
    address, _, port = listen.rpartition(":")

    def serve() -> None:
        from prometheus_client import CollectorRegistry, start_http_server

        registry = CollectorRegistry(auto_describe=False)
        registry.register(metrics)
        try:
            start_http_server(int(port), address.strip("[]"), registry)
        except (OSError, OverflowError) as error:
            logger.warning("no metrics on {}: {}", listen, getattr(error, "strerror", None) or error)
        else:
            logger.debug("metrics on http://{}/metrics", listen)

    threading.Thread(target=serve, name="metrics", daemon=True).start()
