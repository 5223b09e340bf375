from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mig_manager.simulation.history import CompactedError
from mig_manager.simulation.objects import Change, Object
from mig_manager.simulation.resources import CONFIGMAPS, DAEMON_SETS, NODES, PODS
from mig_manager.simulation.store import MemoryStore, ObjectExistsError
from tests.simulation.api.clients import config_map, node, pod


def _labelled(**labels: str) -> Any:
    def change(obj: Object) -> Object:
        obj["metadata"]["labels"] = labels
        return obj

    return change


def test_subscribers_hear_every_change_once_and_in_order_whoever_writes() -> None:
    store = MemoryStore()
    heard: list[int] = []
    store.subscribe(lambda change: heard.append(int(change.object["metadata"]["resourceVersion"])))

    def write(writer: int) -> None:
        for i in range(100):
            store.create(CONFIGMAPS, config_map(f"m-{writer}-{i}"))

    writers = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for each in writers:
        each.start()
    for each in writers:
        each.join()
    assert heard == list(range(2, 402))


def test_a_subscriber_may_write_and_hears_of_it_after_the_change_in_hand() -> None:
    store = MemoryStore()
    heard: list[tuple[str, str]] = []

    def follow(change: Change) -> None:
        heard.append((change.type, change.object["metadata"]["name"]))
        if change.type == "ADDED":
            store.delete(CONFIGMAPS, "default", change.object["metadata"]["name"])

    leave = store.subscribe(follow)
    store.create(CONFIGMAPS, config_map("a"))
    leave()
    store.create(CONFIGMAPS, config_map("b"))
    assert heard == [("ADDED", "a"), ("DELETED", "a")]


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_transaction_that_fails_or_only_tries_leaves_no_trace(dry_run: bool) -> None:
    store = MemoryStore()
    store.create(NODES, node("a"))
    before = (store.snapshot(NODES), store.version)
    heard: list[Change] = []
    store.subscribe(heard.append)

    def write() -> None:
        with store.transaction(dry_run=dry_run):
            store.update(NODES, None, "a", _labelled(x="1"))
            store.delete(NODES, None, "a")
            store.create(NODES, node("a"))
            store.create(NODES, node("a"))

    with pytest.raises(ObjectExistsError):
        write()
    with store.transaction(dry_run=True):
        assert store.delete(NODES, None, "a") is not None
        assert store.get(NODES, None, "a") is None
    assert (store.snapshot(NODES), store.version) == before
    assert heard == []
    assert store.events_after(before[1]) == []


_STEP = st.tuples(st.sampled_from(["create", "update", "delete"]), st.sampled_from("abc"))


@given(steps=st.lists(_STEP, max_size=25))
def test_the_history_tells_every_earlier_state_and_leads_from_it_to_now(
    steps: list[tuple[str, str]],
) -> None:
    store = MemoryStore()
    states = {store.version: store.list(CONFIGMAPS)[0]}
    for i, (action, name) in enumerate(steps):
        if action == "create" and store.get(CONFIGMAPS, "default", name) is None:
            store.create(CONFIGMAPS, config_map(name))
        elif action == "update":
            store.update(CONFIGMAPS, "default", name, _labelled(step=str(i % 2)))
        elif action == "delete":
            store.delete(CONFIGMAPS, "default", name)
        states[store.version] = store.list(CONFIGMAPS)[0]
    for version, state in states.items():
        assert store.snapshot(CONFIGMAPS, at=version) == (state, version)
        replayed = {each["metadata"]["name"]: each for each in state}
        for event in store.events_after(version):
            name = event.change.object["metadata"]["name"]
            assert (event.change.type == "ADDED") is (name not in replayed)
            replayed[name] = event.change.object
            if event.change.type == "DELETED":
                del replayed[name]
        assert sorted(replayed.items()) == [
            (each["metadata"]["name"], each) for each in states[store.version]
        ]


def test_a_compacted_history_says_so() -> None:
    store = MemoryStore(history=10)
    for i in range(50):
        store.create(CONFIGMAPS, config_map(f"m-{i}"))
    assert len(store.events_after(store.version - 10)) == 10
    with pytest.raises(CompactedError):
        store.events_after(2)
    store.compact()
    with pytest.raises(CompactedError):
        store.snapshot(CONFIGMAPS, at=store.version - 1)
    assert store.events_after(store.version) == []


def test_an_update_that_changes_nothing_is_none() -> None:
    store = MemoryStore()
    made = store.create(NODES, node("a", x="1"))
    heard: list[Change] = []
    store.subscribe(heard.append)
    assert store.update(NODES, None, "a", lambda held: held) == made
    assert store.update(NODES, None, "a", lambda _: None) == made
    assert heard == []
    assert store.update(NODES, None, "b", lambda held: held) is None


def test_identity_cannot_be_written_and_generation_follows_the_spec() -> None:
    store = MemoryStore()
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    made = store.create(
        DAEMON_SETS,
        {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}},
    )

    def change(obj: Object) -> Object:
        obj["metadata"].update(uid="x", name="y", namespace="z", creationTimestamp="never", generation=9)
        obj["status"] = {"numberReady": 1}
        return obj

    changed = store.update(DAEMON_SETS, "default", "d", change)
    assert changed is not None
    assert {**changed["metadata"], "resourceVersion": ""} == {**made["metadata"], "resourceVersion": ""}
    changed = store.update(
        DAEMON_SETS, "default", "d", lambda held: {**held, "spec": {**held["spec"], "x": 1}}
    )
    assert changed is not None
    assert changed["metadata"]["generation"] == 2


@pytest.mark.parametrize(
    ("spec", "phase", "asked", "grace"),
    [
        ({"nodeName": "n"}, "Running", None, 30),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 5}, "Running", None, 5),
        ({"nodeName": "n", "terminationGracePeriodSeconds": 5}, "Running", 90, 90),
        ({"nodeName": "n"}, "Running", 0, None),
        ({"nodeName": "n"}, "Succeeded", None, None),
        ({}, "Pending", None, None),
    ],
)
def test_a_pod_that_runs_has_its_grace_period_and_others_go_at_once(
    spec: Object, phase: str, asked: int | None, grace: int | None
) -> None:
    store = MemoryStore()
    made = pod("p", on=None)
    made["spec"].update(spec)
    store.create(PODS, {**made, "status": {"phase": phase}})
    deleted = store.delete(PODS, "default", "p", grace_seconds=asked)
    assert deleted is not None
    held = store.get(PODS, "default", "p")
    if grace is None:
        assert held is None
    else:
        assert held is not None
        assert held["metadata"]["deletionGracePeriodSeconds"] == grace
        later = store.delete(PODS, "default", "p", grace_seconds=grace + 10)
        assert later == held
        store.delete(PODS, "default", "p", grace_seconds=0)
        assert store.get(PODS, "default", "p") is None


def test_a_finalizer_holds_an_object_until_it_is_taken_off() -> None:
    store = MemoryStore()
    made = config_map("a")
    made["metadata"]["finalizers"] = ["example.com/hold"]
    store.create(CONFIGMAPS, made)
    store.delete(CONFIGMAPS, "default", "a")
    held = store.get(CONFIGMAPS, "default", "a")
    assert held is not None
    assert "deletionTimestamp" in held["metadata"]

    def release(obj: Object) -> Object:
        obj["metadata"]["finalizers"] = []
        return obj

    store.update(CONFIGMAPS, "default", "a", release)
    assert store.get(CONFIGMAPS, "default", "a") is None
    assert store.events_after(0)[-1].change.type == "DELETED"


def test_remove_takes_only_the_object_of_that_uid() -> None:
    store = MemoryStore()
    made = store.create(NODES, node("a"))
    store.remove(NODES, None, "a", "another")
    assert store.get(NODES, None, "a") == made
    store.remove(NODES, None, "a", made["metadata"]["uid"])
    assert store.get(NODES, None, "a") is None


def test_limits_count_as_requests() -> None:
    store = MemoryStore()
    made = pod("p")
    made["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    held = store.create(PODS, made)
    assert held["spec"]["containers"][0]["resources"]["requests"] == {"nvidia.com/gpu": "1"}
