"""The official Python client against the server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes
import pytest

from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.resources import NODES, PODS
from mig_manager.simulation.store import MemoryStore
from tests.simulation.api.clients import config_map, node, pod

client: Any = kubernetes.client
config: Any = kubernetes.config
watch: Any = kubernetes.watch

_PARTIAL = {"Accept": "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Iterator[Any]:
    server.write_kubeconfig(tmp_path / "kubeconfig")
    made = config.new_client_from_config(str(tmp_path / "kubeconfig"))
    yield made
    made.close()


@pytest.fixture
def core(api: Any) -> Any:
    return client.CoreV1Api(api)


def test_objects_come_and_go_as_models(core: Any) -> None:
    core.create_namespaced_config_map("default", config_map("a", x="1"))
    held = core.read_namespaced_config_map("a", "default")
    assert (held.data, held.metadata.namespace) == ({"x": "1"}, "default")
    held.data = {"x": "2"}
    assert core.replace_namespaced_config_map("a", "default", held).data == {"x": "2"}
    with pytest.raises(client.ApiException) as failure:
        core.replace_namespaced_config_map("a", "default", held)
    assert (failure.value.status, json.loads(failure.value.body)["reason"]) == (409, "Conflict")
    listed = core.list_config_map_for_all_namespaces(limit=1)
    assert [each.metadata.name for each in listed.items] == ["a"]
    core.delete_namespaced_config_map("a", "default")
    with pytest.raises(client.ApiException) as failure:
        core.read_namespaced_config_map("a", "default")
    assert failure.value.status == 404


def test_a_node_is_patched_and_read_whole(core: Any, store: MemoryStore) -> None:
    store.create(NODES, node("a"))
    assert core.patch_node("a", {"metadata": {"labels": {"x": "y"}}}).metadata.labels["x"] == "y"
    patched = core.patch_node("a", {"metadata": {"labels": {"x": None}}, "spec": {"unschedulable": True}})
    assert "x" not in patched.metadata.labels
    assert (patched.spec.unschedulable, patched.status.allocatable["cpu"]) == (True, "8")


def test_an_eviction_is_made_with_the_policy_model(core: Any, store: MemoryStore) -> None:
    store.create(PODS, pod("p"))
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name="p", namespace="default"))
    answer = json.loads(
        core.create_namespaced_pod_eviction("p", "default", body, _preload_content=False).data
    )
    assert answer["status"] == "Success"
    held = store.get(PODS, "default", "p")
    assert held is not None
    assert "deletionTimestamp" in held["metadata"]


def test_metadata_is_watched_through_the_client(core: Any, store: MemoryStore) -> None:
    store.create(NODES, node("a"))
    version = core.list_node(_preload_content=False)
    version = json.loads(version.data)["metadata"]["resourceVersion"]
    seen: list[dict[str, Any]] = []
    got_one = threading.Event()

    def follow() -> None:
        stream = watch.Watch().stream(
            core.list_node,
            field_selector="metadata.name=a",
            resource_version=version,
            timeout_seconds=5,
            _request_timeout=(5, 10),
            _headers=_PARTIAL,
            deserialize=False,
        )
        for event in stream:
            seen.append(event["object"])
            got_one.set()
            return

    follower = threading.Thread(target=follow)
    follower.start()
    core.patch_node("a", {"metadata": {"labels": {"x": "y"}}})
    assert got_one.wait(60)
    follower.join(60)
    assert (seen[0]["kind"], seen[0]["metadata"]["labels"]["x"]) == ("PartialObjectMetadata", "y")


def test_a_forgotten_version_ends_a_watch_with_410(core: Any, store: MemoryStore) -> None:
    store.create(NODES, node("a"))
    store.compact()
    with pytest.raises(client.ApiException) as failure:
        list(watch.Watch().stream(core.list_node, resource_version="2", timeout_seconds=1))
    assert failure.value.status == 410


def test_leases_events_and_reviews(api: Any) -> None:
    leases = client.CoordinationV1Api(api)
    spec = {
        "holderIdentity": "me",
        "renewTime": "2026-01-01T00:00:00.250000Z",
    }  # The client drops a fraction of zero.
    leases.create_namespaced_lease("default", {"metadata": {"name": "l"}, "spec": spec})
    assert leases.read_namespaced_lease("l", "default").spec.holder_identity == "me"
    event = {
        "metadata": {"generateName": "a."},
        "involvedObject": {"kind": "Node", "name": "a"},
        "reason": "Done",
        "type": "Normal",
        "message": "hello",
    }
    client.CoreV1Api(api).create_namespaced_event("default", event)
    selected = client.CoreV1Api(api).list_event_for_all_namespaces(field_selector="involvedObject.name=a")
    assert [each.message for each in selected.items] == ["hello"]
    attributes = client.V1ResourceAttributes(verb="patch", resource="nodes")
    review = client.V1SelfSubjectAccessReview(
        spec=client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
    )
    answer = client.AuthorizationV1Api(api).create_self_subject_access_review(review)
    assert answer.status.allowed
