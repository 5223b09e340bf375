from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import urllib3

from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.api.streams import Trouble
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import NODES as NODE
from mig_manager.simulation.store import MemoryStore
from tests.simulation.api.clients import MAPS, NODES, Http, config_map, node

_WATCH = f"{NODES}?watch=true"
_PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def _label(store: MemoryStore, name: str, value: str) -> Object:
    def change(obj: Object) -> Object:
        obj["metadata"].setdefault("labels", {})["x"] = value
        return obj

    changed = store.update(NODE, None, name, change)
    assert changed is not None
    return changed


def _take(events: Iterator[Object], count: int) -> list[tuple[str, Any]]:
    return [(each["type"], each["object"]) for each in islice(events, count)]


@pytest.mark.parametrize("version", ["", "&resourceVersion=0"])
def test_without_a_version_a_watch_begins_with_what_is_there(
    http: Http, store: MemoryStore, version: str
) -> None:
    made = http.made(NODES, node("a"))
    with http.stream(_WATCH + version) as events:
        assert _take(events, 1) == [("ADDED", made)]
        changed = _label(store, "a", "1")
        assert _take(events, 1) == [("MODIFIED", changed)]
        store.delete(NODE, None, "a")
        [(kind, last)] = _take(events, 1)
        assert (kind, last["metadata"]["labels"]) == ("DELETED", changed["metadata"]["labels"])


def test_from_a_version_a_watch_tells_all_that_came_later(http: Http, store: MemoryStore) -> None:
    http.made(NODES, node("a"))
    version = http("GET", NODES).body["metadata"]["resourceVersion"]
    first, second = _label(store, "a", "1"), _label(store, "a", "2")
    http.made(MAPS, config_map("other"))
    with http.stream(f"{_WATCH}&resourceVersion={version}") as events:
        assert _take(events, 2) == [("MODIFIED", first), ("MODIFIED", second)]


def test_an_object_enters_and_leaves_a_selection(http: Http, store: MemoryStore) -> None:
    http.made(NODES, node("a"))
    with http.stream(f"{_WATCH}&labelSelector=x=1") as events:
        _label(store, "a", "1")
        _label(store, "a", "2")
        version = str(store.version)
        [(entered, _), (left, gone)] = _take(events, 2)
        assert (entered, left) == ("ADDED", "DELETED")
        assert gone["metadata"]["labels"]["x"] == "1"
        assert gone["metadata"]["resourceVersion"] == version


def test_a_field_selector_watches_one_object_as_metadata(http: Http, store: MemoryStore) -> None:
    for name in ("a", "b"):
        http.made(NODES, node(name))
    with http.stream(f"{_WATCH}&fieldSelector=metadata.name%3Db", Accept=_PARTIAL) as events:
        [(_, first)] = _take(events, 1)
        assert set(first) == {"kind", "apiVersion", "metadata"}
        _label(store, "a", "1")
        _label(store, "b", "1")
        [(_, second)] = _take(events, 1)
        assert (second["metadata"]["name"], second["metadata"]["labels"]["x"]) == ("b", "1")


def test_only_the_first_table_of_a_watch_has_headers(http: Http) -> None:
    for name in ("a", "b"):
        http.made(NODES, node(name))
    with http.stream(_WATCH, Accept=_TABLE) as events:
        tables = [table for _, table in _take(events, 2)]
    assert [each["rows"][0]["cells"][0] for each in tables] == ["a", "b"]
    assert [bool(each["columnDefinitions"]) for each in tables] == [True, False]


@pytest.mark.parametrize("accept", ["application/json", _PARTIAL])
def test_initial_events_end_with_a_bookmark(http: Http, accept: str) -> None:
    http.made(NODES, node("a"))
    query = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    with http.stream(f"{_WATCH}&{query}", Accept=accept) as events:
        [(added, _), (mark, at)] = _take(events, 2)
    assert (added, mark) == ("ADDED", "BOOKMARK")
    assert at["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}
    assert http("GET", f"{_WATCH}&sendInitialEvents=true").code == 422


def test_bookmarks_tell_how_far_a_quiet_watch_is(store: MemoryStore) -> None:
    with ApiServer(store, bookmark_s=0.05) as server, Http(server.url) as http:
        version = http.made(NODES, node("a"))["metadata"]["resourceVersion"]
        with http.stream(f"{_WATCH}&allowWatchBookmarks=true&resourceVersion={version}") as events:
            later = http.made(MAPS, config_map("m"))["metadata"]["resourceVersion"]
            seen = (event["object"]["metadata"]["resourceVersion"] for event in events)
            assert next(each for each in seen if each != version) == later


def test_a_watch_ends_when_its_time_is_up(http: Http) -> None:
    with http.stream(f"{_WATCH}&timeoutSeconds=1") as events:
        assert list(events) == []


def test_a_watch_from_a_forgotten_version_is_gone(http: Http, store: MemoryStore) -> None:
    http.made(NODES, node("a"))
    store.compact()
    with http.stream(f"{_WATCH}&resourceVersion=2") as events:
        [event] = list(events)
    assert event["type"] == "ERROR"
    assert (event["object"]["code"], event["object"]["reason"]) == (410, "Expired")
    assert event["object"]["message"] == f"too old resource version: 2 ({store.version})"


@pytest.mark.parametrize(
    ("trouble", "ending"),
    [
        ("close", None),
        ("gone", None),
        ("cut", urllib3.exceptions.ProtocolError),
        ("silent", urllib3.exceptions.ReadTimeoutError),
    ],
)
def test_open_watches_go_wrong_on_request(
    server: ApiServer, http: Http, store: MemoryStore, trouble: Trouble, ending: type[Exception] | None
) -> None:
    http.made(NODES, node("a"))
    answer = urllib3.PoolManager(retries=False).request(
        "GET", server.url + _WATCH, preload_content=False, timeout=urllib3.Timeout(read=1.5)
    )
    chunks = answer.stream()
    assert b"ADDED" in next(chunks)
    assert server.disturb_watches(trouble, path="^/api/v1/pods") == 0
    assert server.disturb_watches(trouble, path="^/api/v1/nodes") == 1
    _label(store, "a", "1")
    if ending is not None:
        with pytest.raises(ending):
            list(chunks)
    else:
        assert (b'"code":410' in b"".join(chunks)) is (trouble == "gone")
    answer.close()


def test_a_watch_can_be_made_to_break_after_some_lines(server: ApiServer, http: Http) -> None:
    for name in ("a", "b", "c"):
        http.made(NODES, node(name))
    server.faults.add(Fault(path="watch=true", how="cut", lines=2))
    with http.stream(_WATCH) as events:
        assert [obj["metadata"]["name"] for _, obj in _take(events, 2)] == ["a", "b"]
        with pytest.raises(urllib3.exceptions.ProtocolError):
            next(events)
    with http.stream(_WATCH) as events:
        assert len(_take(events, 3)) == 3


def test_a_busy_watch_loses_nothing(http: Http, store: MemoryStore) -> None:
    http.made(NODES, node("a"))
    version = store.version
    with http.stream(f"{_WATCH}&resourceVersion={version}") as events:
        for i in range(500):
            _label(store, "a", str(i))
        seen = [obj["metadata"]["labels"]["x"] for _, obj in _take(events, 500)]
    assert seen == [str(i) for i in range(500)]
