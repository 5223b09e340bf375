"""What this process has counted since its start, as plain numbers.

Prometheus' library makes metrics of them when somebody asks: until then nobody waits for it to be imported.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

from mig_manager.daemon.measures import API_ERRORS, INSTANCES, NVML_ERRORS, WATCH_RESTARTS, Measure
from mig_manager.gpu.control import CallRecord
from mig_manager.gpu.nvml import SUCCESS, code_name, is_failure

Labels = tuple[str, ...]

_ACTIONS = {
    "nvmlDeviceCreateGpuInstanceWithPlacement": "created",
    "nvmlGpuInstanceDestroy": "destroyed",
}


@dataclass(frozen=True, slots=True)
class Spread:
    """A histogram's numbers."""

    cumulated: tuple[int, ...]
    """Of each bucket, the infinite one last: how many values it and those below it hold."""
    total: float
    """The sum of all values."""


class Counts:
    """Counters and histograms. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._totals: dict[Measure, Counter[Labels]] = defaultdict(Counter)
        self._buckets: dict[Measure, dict[Labels, list[int]]] = defaultdict(dict)
        self._sums: dict[Measure, dict[Labels, float]] = defaultdict(dict)

    def add(self, measure: Measure, *labels: str, amount: int = 1) -> None:
        """Count something; the labels in the order in which the measure has them. An amount of 0 shows as such."""
        with self._lock:
            self._totals[measure][labels] += amount

    def observe(self, measure: Measure, value: float, *labels: str) -> None:
        """Put a value into a histogram."""
        with self._lock:
            empty = [0] * (len(measure.buckets) + 1)
            buckets = self._buckets[measure].setdefault(labels, empty)
            buckets[bisect_left(measure.buckets, value)] += 1
            self._sums[measure][labels] = self._sums[measure].get(labels, 0.0) + value

    def totals(self, measure: Measure) -> dict[Labels, int]:
        """A counter's numbers by labels."""
        with self._lock:
            return dict(self._totals[measure])

    def spreads(self, measure: Measure) -> dict[Labels, Spread]:
        """A histogram's numbers by labels."""
        with self._lock:
            return {
                labels: Spread(tuple(accumulate(buckets)), self._sums[measure][labels])
                for labels, buckets in self._buckets[measure].items()
            }

    # What other rooms tell, in their own words.

    def nvml_called(self, calls: Iterable[CallRecord]) -> None:
        """Count what NVML has refused, and the instances that came and went."""
        for call in calls:
            if is_failure(call):
                self.add(NVML_ERRORS, call.function, code_name(call.code))
            elif call.code == SUCCESS and call.function in _ACTIONS:
                self.add(INSTANCES, _ACTIONS[call.function])

    def api_refused(self, method: str, status: int) -> None:
        """Count a request that failed; status 0: there was no answer."""
        self.add(API_ERRORS, method, str(status))

    def watch_restarted(self, resource: str) -> None:
        """Count a watch that starts over."""
        self.add(WATCH_RESTARTS, resource)
