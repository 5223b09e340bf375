"""What the daemon costs the API server: requests of a change, and bytes of an idle hour.

Requests: the real daemon carries changes out on a simulated node whose delays are those of
benchmarks/overhead.py; every request from the label to the last Event counts. Nobody has to be evicted.

Bytes: a Node as large as on a production cluster (50 images, 12 conditions, 60 labels, managed fields) gets a
heartbeat every ten seconds, as older kubelets and other agents write it. What a client receives of it over an hour is
read from real connections to the simulated API server, for the daemon's metadata-only watch and for a watch of the
whole Node. The hour is not waited for: heartbeats follow each other at once, and the streams that are opened anew in
an hour are opened that often.

Goal: at most 12 requests.

Run: python -m benchmarks requests
"""

from __future__ import annotations

import tempfile
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks._bed import Bed
from benchmarks._table import print_table
from mig_manager.cluster.client import JSON, METADATA, METADATA_LIST, Api
from mig_manager.cluster.stream import json_lines
from mig_manager.cluster.watch import WatchOptions
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import NODES
from mig_manager.simulation.store import MemoryStore

_GPUS = "2xA100-SXM4-80GB"
_WALK = ("all-1g.10gb", "all-balanced", "all-3g.40gb", "all-2g.20gb")
_GOAL = 12
_HOUR_S = 3600
_HEARTBEAT_S = 10
_NODES = "/api/v1/nodes"
_NODE = "gpu-node-1"


def main() -> None:
    """Measure and print two tables."""
    _print_requests()
    options = WatchOptions()
    streams = round(_HOUR_S / (options.stream_s * 0.875))
    lists = round(_HOUR_S / options.relist_s)
    sizes = {
        "metadata only": _bytes(METADATA, METADATA_LIST, streams, lists),
        "whole Node": _bytes(JSON, JSON, streams, lists),
    }
    beats = _HOUR_S // _HEARTBEAT_S
    whole = sizes["whole Node"]
    rows = [
        (what, f"{size / 1024:.0f} KiB", f"{size / beats / 1024:.1f} KiB", f"{size / whole:.2f}")
        for what, size in sizes.items()
    ]
    print(f"One idle hour, {beats} heartbeats, {streams} streams, {lists} lists:")
    print_table(("watch of the Node", "received", "a heartbeat", "ratio"), rows)


def _print_requests() -> None:
    with Bed(_GPUS) as bed:
        bed.start()
        before = "all-disabled"
        rows = []
        for layout in _WALK:
            bed.cluster.api.requests.clear()
            bed.apply(layout)
            bed.cluster.api.requests.wait_for(_says_applied, 10)
            asked = Counter(
                f"{each.verb} {each.resource}"
                for each in bed.requests()
                if each.resource not in _BESIDE and not _is_of_the_idle_watches(each.query, each.accept)
            )
            words = ", ".join(f"{count} {what}" for what, count in asked.items())
            rows.append((f"{before} -> {layout}", asked.total(), words))
            before = layout
    print_table(("change", "requests", f"which (goal: at most {_GOAL})"), rows)


_BESIDE = ("selfsubjectaccessreviews", "configmaps")
"""Asked once at the start; watched whether a run goes on or not."""


def _is_of_the_idle_watches(query: object, accept: str) -> bool:
    return "PartialObjectMetadata" in accept and isinstance(query, dict) and bool(query)


def _says_applied(request: Any) -> bool:
    return request.resource == "events" and (request.body or {}).get("reason") == "Applied"


def _bytes(accept: str, accept_list: str, streams: int, lists: int) -> int:
    """Bytes of the bodies that a client receives in an hour."""
    store = MemoryStore()
    with tempfile.TemporaryDirectory() as directory, ApiServer(store) as server:
        server.write_kubeconfig(Path(directory, "kubeconfig"))
        store.create(NODES, _node())
        query = {"fieldSelector": f"metadata.name={_NODE}"}
        with Api.connect(Path(directory, "kubeconfig")) as api:
            received = 0
            for _ in range(lists):
                with api.stream(_NODES, query, accept=accept_list, silence_s=10) as answer:
                    received += len(answer.read())
            beats = iter(_heartbeats(store))
            each = _HOUR_S // _HEARTBEAT_S / streams
            for number in range(streams):
                wanted = round(each * (number + 1)) - round(each * number)
                received += _stream(api, store, accept, wanted, beats)
    return received


def _stream(api: Api, store: MemoryStore, accept: str, wanted: int, beats: Iterator[None]) -> int:
    """Bytes of one stream over that many heartbeats."""
    query = {
        "fieldSelector": f"metadata.name={_NODE}",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": store.list(NODES)[1],
        "timeoutSeconds": "30",
    }
    received = 0
    stream = api.stream(_NODES, query, accept=accept, silence_s=40)
    try:
        lines = json_lines(stream)
        for _ in range(wanted):
            next(beats)
            next(lines)
        received = stream.tell()
    finally:
        stream.close()
    return received


def _heartbeats(store: MemoryStore) -> Iterator[None]:
    """Each step is one write of the node's status."""
    began = datetime.now(UTC)
    for number in range(_HOUR_S // _HEARTBEAT_S + 1):
        at = (began + timedelta(seconds=_HEARTBEAT_S * number)).strftime("%Y-%m-%dT%H:%M:%SZ")

        def beat(node: Object, at: str = at) -> Object:
            for condition in node["status"]["conditions"]:
                condition["lastHeartbeatTime"] = at
            return node

        store.update(NODES, None, _NODE, beat)
        yield


def _node() -> Object:
    """A Node of about the size that one has with the GPU Operator and a full image list."""
    labels = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(60)}
    conditions = [
        {
            "type": f"Condition{number}",
            "status": "False",
            "lastHeartbeatTime": "2026-01-01T00:00:00Z",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": f"NothingIsWrongWith{number}",
            "message": "kubelet or node problem detector says that all is well with this part of the node",
        }
        for number in range(12)
    ]
    images = [
        {
            "names": [
                f"registry.example.com/team/image-{number}@sha256:{uuid.uuid4().hex * 2}",
                f"registry.example.com/team/image-{number}:v1.{number}.0",
            ],
            "sizeBytes": 123456789 + number,
        }
        for number in range(50)
    ]
    managed: list[Object] = [
        {
            "manager": manager,
            "operation": "Update",
            "apiVersion": "v1",
            "fieldsType": "FieldsV1",
            "fieldsV1": {"f:metadata": {"f:labels": {f"f:{label}": {} for label in labels}}},
        }
        for manager in ("kubelet", "nfd-master")
    ]
    return {
        "metadata": {
            "name": _NODE,
            "labels": labels,
            "managedFields": managed,
            "annotations": {"mig-manager/gpus": "x" * 2500, "mig-manager/status": "x" * 400},
        },
        "spec": {"podCIDR": "10.244.0.0/24"},
        "status": {
            "capacity": {"cpu": "64", "memory": "528280904Ki", "pods": "110", "nvidia.com/gpu": "8"},
            "allocatable": {"cpu": "64", "memory": "528280904Ki", "pods": "110", "nvidia.com/gpu": "8"},
            "conditions": conditions,
            "images": images,
            "nodeInfo": {"kubeletVersion": "v1.34.1", "bootID": str(uuid.uuid4())},
        },
    }


if __name__ == "__main__":
    main()
