"""Everything that is measured: names, units, labels and meaning, for Prometheus and for docs/metrics.md.

Names follow the conventions of Prometheus. The labels take few values: words of this project, HTTP and NVML codes,
and, of what the Node has, one layout name and the models and profiles of its GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

_SECONDS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0, 7200.0)
"""From a step that is done at once to the longest drain, upper bounds."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One metric."""

    name: str
    """As scraped; a histogram's without `_bucket`, `_sum` and `_count`."""
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds in seconds, without the infinite one; of a histogram only."""


BUILD = Measure("mig_manager_build_info", "gauge", "The daemon's version; always 1.", ("version",))
START_TIME = Measure(
    "mig_manager_start_time_seconds", "gauge", "When the daemon started, in seconds since the epoch."
)

STATE = Measure(
    "mig_manager_state", "gauge", "1 for the state that the Node's label says, 0 for the others.", ("state",)
)
WANTED_LAYOUT = Measure(
    "mig_manager_wanted_layout_info",
    "gauge",
    "The layout that the Node's label asks for; always 1. Absent without a label.",
    ("layout",),
)
CURRENT_LAYOUT = Measure(
    "mig_manager_current_layout_info",
    "gauge",
    "The layout that was last applied with success; always 1. Absent while that is not known.",
    ("layout",),
)
DRIFT = Measure("mig_manager_drift", "gauge", "1 while the GPUs are known to differ from what was applied.")
CORDONED = Measure("mig_manager_cordoned", "gauge", "1 while the daemon keeps the node cordoned.")
GPUS = Measure("mig_manager_gpus", "gauge", "GPUs, by model and MIG mode (on, off, none).", ("model", "mig"))
GPU_INSTANCES = Measure(
    "mig_manager_gpu_instances",
    "gauge",
    "GPU instances, as last read, by model and profile.",
    ("model", "profile"),
)

PHASE = Measure(
    "mig_manager_phase_info",
    "gauge",
    "The phase of the run that is under way; always 1. Absent between runs.",
    ("phase",),
)
WAITING_FOR_SLOT = Measure(
    "mig_manager_waiting_for_slot", "gauge", "1 while a run waits for its turn among the nodes of the fleet."
)

RUNS = Measure(
    "mig_manager_runs_total",
    "counter",
    "Runs that have ended, by result (success, failed) and reason (empty for a success).",
    ("result", "reason"),
)
RUN_SECONDS = Measure(
    "mig_manager_run_duration_seconds",
    "histogram",
    "How long runs took, waits for a window and for a slot included, by result.",
    ("result",),
    _SECONDS,
)
PHASE_SECONDS = Measure(
    "mig_manager_phase_duration_seconds",
    "histogram",
    "How long runs stayed in a phase, by phase; each stay counts.",
    ("phase",),
    _SECONDS,
)
PODS_EVICTED = Measure(
    "mig_manager_pods_evicted_total", "counter", "Pods that were evicted, or deleted in drain mode delete."
)
EVICTION_RETRIES = Measure(
    "mig_manager_eviction_retries_total",
    "counter",
    "Evictions (dry runs too) that were refused, so that they had to be tried again.",
)
GPU_CHANGES = Measure(
    "mig_manager_gpu_changes_total",
    "counter",
    "Changes of a GPU that runs have begun, by its index; a GPU that is right already does not count.",
    ("gpu",),
)
INSTANCES = Measure(
    "mig_manager_instances_total",
    "counter",
    "GPU instances that runs have kept, created and destroyed, roll-backs included.",
    ("action",),
)

NVML_ERRORS = Measure(
    "mig_manager_nvml_errors_total",
    "counter",
    "NVML calls that failed, by function and code. The usual answers that there is no such thing do not count; "
    "NVML_ERROR_TIMEOUT is a call that never came back.",
    ("call", "code"),
)
API_ERRORS = Measure(
    "mig_manager_api_errors_total",
    "counter",
    "Requests that the API server refused, by method and HTTP status; code 0: there was no answer.",
    ("method", "code"),
)
WATCH_RESTARTS = Measure(
    "mig_manager_watch_restarts_total",
    "counter",
    "Watches that had to start over because they broke or were refused, by resource; not their regular ends.",
    ("resource",),
)

MEASURES = (
    BUILD,
    START_TIME,
    STATE,
    WANTED_LAYOUT,
    CURRENT_LAYOUT,
    DRIFT,
    CORDONED,
    GPUS,
    GPU_INSTANCES,
    PHASE,
    WAITING_FOR_SLOT,
    RUNS,
    RUN_SECONDS,
    PHASE_SECONDS,
    PODS_EVICTED,
    EVICTION_RETRIES,
    GPU_CHANGES,
    INSTANCES,
    NVML_ERRORS,
    API_ERRORS,
    WATCH_RESTARTS,
)
"""All of them, in the order of the page."""
