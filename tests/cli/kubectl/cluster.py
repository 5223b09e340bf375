"""Nodes and pods on a simulated API server, as the daemon and the kubelet would leave them; no daemon runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mig_manager.cluster.node import NodeChange
from mig_manager.daemon.advertised import expected_resources, shapes_now
from mig_manager.daemon.gpus import gpu_facts, gpus_annotation
from mig_manager.daemon.journal import JOURNAL_ANNOTATION, Journal, gpus_before
from mig_manager.daemon.status import (
    CONFIG_LABEL,
    GPUS_ANNOTATION,
    LAYOUTS_ANNOTATION,
    STATE_LABEL,
    STATUS_ANNOTATION,
    STRATEGY_LABEL,
    Granted,
    Phase,
    State,
    Status,
)
from mig_manager.layouts.book import LayoutBook, content_hash, resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.layouts.layout import GpuIdentity, NodeTarget
from mig_manager.layouts.schema import parse_layouts
from mig_manager.planning.catalogue import parse_gpus
from mig_manager.planning.offers import offers
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import GpuState, Inventory
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.resources import CONFIGMAPS, NAMESPACES, NODES, POD_DISRUPTION_BUDGETS, PODS
from tests.planning.carry_out import carry_out

JsonObject = dict[str, Any]

STARTED = "2026-03-01T12:00:00.000Z"
FINISHED = "2026-03-01T12:00:40.000Z"


def inventory_of(gpus: str) -> Inventory:
    """New GPUs, MIG off, from text such as `2xA100-SXM4-80GB,1xT4`."""
    states = []
    for index, model in enumerate(parse_gpus(gpus)):
        gpu = GpuIdentity(
            index,
            f"GPU-{index:08x}-0000-0000-0000-000000000000",
            f"00000000:{index + 7:02X}:00.0",
            model.name,
            model.device_ids[0],
            0,
            model.geometry is not None,
        )
        states.append(GpuState(gpu, False, False, model.mode_change_needs_reset, model.geometry))
    return Inventory("570.86.15", tuple(states))


def layouts_of(inventory: Inventory, own: str | None = None) -> LayoutBook:
    """The layouts of a node: those of a layout file, if there is one, over those generated."""
    generated = generate_layouts(offers(inventory))
    return generated if own is None else parse_layouts(own, file="config.yaml").merged_over(generated)


def target_of(layout: str, inventory: Inventory, own: str | None = None) -> NodeTarget:
    """What a layout means on these GPUs."""
    return resolve(layouts_of(inventory, own).get(layout), [state.gpu for state in inventory.gpus])


def with_layout(layout: str, inventory: Inventory, own: str | None = None) -> Inventory:
    """The GPUs once the layout has been applied."""
    plans = {plan.gpu.index: plan for plan in plan_node(target_of(layout, inventory, own), inventory).gpus}
    return replace(
        inventory,
        gpus=tuple(
            carry_out(plans[state.gpu.index], state) if state.gpu.index in plans else state
            for state in inventory.gpus
        ),
    )


def feasible(inventory: Inventory, own: str | None = None) -> list[str]:
    """Names as the daemon lists them."""
    return sorted(layouts_of(inventory, own).layouts)


@dataclass(frozen=True, slots=True)
class Cluster:
    """A simulated API server, written to behind its back, and a kubeconfig for it."""

    server: ApiServer
    kubeconfig: Path

    def add_node(
        self,
        name: str,
        gpus: str = "2xA100-SXM4-80GB",
        *,
        layout: str | None = "all-1g.10gb",
        own: str | None = None,
        strategy: str = "mixed",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        cordoned: bool = False,
    ) -> Inventory:
        """A Node that has the layout, with all that mig-manager, kubelet and feature discovery say on it.

        `own` is the text of the layout file that the node uses. Without a layout it has never been labelled: MIG
        is off, and mig-manager has said nothing. Gives its GPUs.
        """
        inventory = inventory_of(gpus)
        meta: JsonObject = {"name": name, "labels": {}, "annotations": {}}
        meta["labels"] |= {"nvidia.com/gpu.present": "true", STRATEGY_LABEL: strategy, **(labels or {})}
        if layout is not None:
            hash_ = content_hash(target_of(layout, inventory, own))
            inventory = with_layout(layout, inventory, own)
            status = Status(
                layout=layout,
                state=State.SUCCESS,
                phase=Phase.DONE,
                hash=hash_,
                startedAt=STARTED,
                finishedAt=FINISHED,
                granted=Granted.of(hash_, gpu_facts(inventory)),
            )
            meta["labels"] |= {CONFIG_LABEL: layout, STATE_LABEL: State.SUCCESS}
            meta["annotations"] |= {
                STATUS_ANNOTATION: status.to_json(),
                GPUS_ANNOTATION: gpus_annotation(inventory),
                LAYOUTS_ANNOTATION: json.dumps(feasible(inventory, own)),
            }
        meta["annotations"] |= annotations or {}
        offered = {key: str(count) for key, count in resources_of(inventory, strategy).items()}
        resources = {"cpu": "64", "memory": "256Gi", "pods": "110", **offered}
        spec = {"unschedulable": True} if cordoned else {}
        status_part = {"capacity": resources, "allocatable": resources}
        self.server.store.create(NODES, {"metadata": meta, "spec": spec, "status": status_part})
        return inventory

    def change_node(self, name: str, change: NodeChange) -> None:
        """Change labels, annotations or cordon as the daemon does."""

        def patched(node: JsonObject) -> JsonObject:
            for key, values in (("labels", change.labels), ("annotations", change.annotations)):
                held = node["metadata"].setdefault(key, {})
                for name, value in values.items():
                    held.pop(name, None) if value is None else held.update({name: value})
            if change.unschedulable is not None:
                node["spec"]["unschedulable"] = change.unschedulable
            return node

        self.server.store.update(NODES, None, name, patched)

    def say(self, name: str, change: Callable[[Status], Status]) -> None:
        """Change what the status of a Node says, and its state label with it."""
        said = Status.from_json(self.node(name)["metadata"]["annotations"].get(STATUS_ANNOTATION))
        new = change(said or Status(layout="", state=State.PENDING, phase=Phase.VALIDATING))
        annotations = {STATUS_ANNOTATION: new.to_json()}
        self.change_node(name, NodeChange(labels={STATE_LABEL: new.state}, annotations=annotations))

    def journal(self, name: str, inventory: Inventory) -> None:
        """Let a run be under way, or broken off, with the GPUs as they were before."""
        journal = Journal(STARTED, True, resources_of(inventory, "mixed"), gpus=gpus_before(inventory))
        self.change_node(
            name, NodeChange(annotations={JOURNAL_ANNOTATION: journal.to_json()}, unschedulable=True)
        )

    def add_pod(
        self,
        name: str,
        node: str | None,
        resources: Mapping[str, int] | None = None,
        *,
        namespace: str = "default",
        owner: str | None = "ReplicaSet",
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        phase: str | None = None,
        spec: JsonObject | None = None,
    ) -> None:
        """A pod: running on that node, or pending where there is none. `owner` None: a bare pod."""
        store = self.server.store
        if store.get(NAMESPACES, None, namespace) is None:
            store.create(NAMESPACES, {"metadata": {"name": namespace}})
        limits = {key: str(count) for key, count in (resources or {}).items()}
        container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
        meta: JsonObject = {"name": name, "namespace": namespace, "labels": dict(labels or {})}
        meta["annotations"] = dict(annotations or {})
        if owner is not None:
            reference = {"apiVersion": "apps/v1", "kind": owner, "name": name, "uid": name}
            meta["ownerReferences"] = [reference | {"controller": True}]
        bound = {"nodeName": node} if node else {}
        store.create(
            PODS,
            {
                "metadata": meta,
                "spec": {"containers": [container], **bound, **(spec or {})},
                "status": {"phase": phase or ("Running" if node else "Pending"), "startTime": STARTED},
            },
        )

    def add_budget(
        self, name: str, selector: Mapping[str, str], allowed: int, namespace: str = "default"
    ) -> None:
        """A PodDisruptionBudget that lets so many pods go now."""
        spec = {"minAvailable": 1, "selector": {"matchLabels": dict(selector)}}
        self.server.store.create(
            POD_DISRUPTION_BUDGETS,
            {
                "metadata": {"name": name, "namespace": namespace},
                "spec": spec,
                "status": {"disruptionsAllowed": allowed},
            },
        )

    def add_config_map(self, namespace: str, name: str, data: Mapping[str, str]) -> None:
        """A ConfigMap, such as one with layouts."""
        if self.server.store.get(NAMESPACES, None, namespace) is None:
            self.server.store.create(NAMESPACES, {"metadata": {"name": namespace}})
        self.server.store.create(
            CONFIGMAPS, {"metadata": {"name": name, "namespace": namespace}, "data": dict(data)}
        )

    def node(self, name: str) -> JsonObject:
        """A Node as it is now."""
        found = self.server.store.get(NODES, None, name)
        assert found is not None
        return found

    def clear(self) -> None:
        """Take away all Nodes, pods and faults, for the next case of a module."""
        self.server.faults.clear()
        for kind in (PODS, NODES):
            for each in self.server.store.list(kind)[0]:
                meta = each["metadata"]
                self.server.store.remove(kind, meta.get("namespace"), meta["name"], meta["uid"])


@contextmanager
def once_watched(cluster: Cluster, do: Callable[[], object]) -> Iterator[None]:
    """Do something in another thread as soon as the command of this block has begun to watch."""
    cluster.server.requests.clear()

    def wait() -> None:
        assert cluster.server.requests.wait_for(lambda each: each.verb == "watch", 60)
        do()

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(wait)
        yield
        done.result()


def resources_of(inventory: Inventory, strategy: str) -> Mapping[str, int]:
    """What NVIDIA's device plugin advertises for these GPUs."""
    return expected_resources(shapes_now(inventory), strategy)
