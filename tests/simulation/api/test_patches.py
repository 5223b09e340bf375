from __future__ import annotations

import json
from typing import Any

import pytest

from mig_manager.simulation.api.patches import json_patch, merge_patch
from mig_manager.simulation.api.selectors import field_selector, label_matches, label_selector
from mig_manager.simulation.api.status import StatusError
from mig_manager.simulation.api.strategic import strategic_merge
from mig_manager.simulation.resources import CONFIGMAPS, EVENTS, NODES, PODS

# The table of RFC 7386, appendix A.
_MERGES = [
    ({"a": "b"}, {"a": "c"}, {"a": "c"}),
    ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
    ({"a": "b"}, {"a": None}, {}),
    ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
    ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
    ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
    ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
    ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
    (["a", "b"], ["c", "d"], ["c", "d"]),
    ({"a": "b"}, ["c"], ["c"]),
    ({"a": "foo"}, None, None),
    ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
    ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
    ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
]


@pytest.mark.parametrize(("target", "patch", "result"), _MERGES)
def test_merge_patch_does_what_the_rfc_says(target: Any, patch: Any, result: Any) -> None:
    before = json.dumps(target)
    assert merge_patch(target, patch) == result
    assert json.dumps(target) == before


# From RFC 6902, appendix A, and what it forbids.
_JSON_PATCHES: list[tuple[Any, list[dict[str, Any]], Any]] = [
    ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"foo": "bar", "baz": "qux"}),
    ({"foo": ["a", "c"]}, [{"op": "add", "path": "/foo/1", "value": "b"}], {"foo": ["a", "b", "c"]}),
    ({"foo": ["a"]}, [{"op": "add", "path": "/foo/-", "value": ["b"]}], {"foo": ["a", ["b"]]}),
    ({"a": 1, "b": 2}, [{"op": "remove", "path": "/a"}], {"b": 2}),
    ({"foo": ["a", "b"]}, [{"op": "remove", "path": "/foo/0"}], {"foo": ["b"]}),
    ({"a": 1}, [{"op": "replace", "path": "/a", "value": None}], {"a": None}),
    ({"a": {"b": 1}, "c": {}}, [{"op": "move", "from": "/a/b", "path": "/c/d"}], {"a": {}, "c": {"d": 1}}),
    ({"a": {"b": 1}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": 1}, "c": {"b": 1}}),
    ({"x/y": 1, "m~n": 2}, [{"op": "test", "path": "/x~1y", "value": 1}], {"x/y": 1, "m~n": 2}),
    ({"a": 1}, [{"op": "test", "path": "/b", "value": None}], {"a": 1}),
    ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
    ({"a": 1}, [{"op": "test", "path": "/a", "value": "1"}], 422),
    ({"a": 1}, [{"op": "replace", "path": "/b", "value": 1}], 422),
    ({"a": 1}, [{"op": "remove", "path": "/b"}], 422),
    ({"a": 1}, [{"op": "add", "path": "/b/c", "value": 1}], 422),
    ({"a": [1]}, [{"op": "add", "path": "/a/3", "value": 1}], 422),
    ({"a": 1}, [{"op": "grow", "path": "/a"}], 422),
    ({"a": 1}, [{"op": "add", "path": "/b", "value": 1}, {"op": "test", "path": "/a", "value": 2}], 422),
]


@pytest.mark.parametrize(("target", "patch", "result"), _JSON_PATCHES)
def test_json_patch_does_what_the_rfc_says(target: Any, patch: Any, result: Any) -> None:
    before = json.dumps(target)
    if isinstance(result, int):
        with pytest.raises(StatusError) as failure:
            json_patch(target, patch)
        assert failure.value.code == result
    else:
        assert json_patch(target, patch) == result
    assert json.dumps(target) == before


def test_what_is_no_list_of_operations_is_a_bad_request() -> None:
    with pytest.raises(StatusError) as failure:
        json_patch({}, {"op": "add"})
    assert failure.value.code == 400


_CONTAINERS = {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]}
_STRATEGIC: list[tuple[Any, Any, Any]] = [
    (
        _CONTAINERS,
        {"containers": [{"name": "b", "image": "2"}]},
        {"containers": [{"name": "a", "image": "1"}, {"name": "b", "image": "2"}]},
    ),
    (
        _CONTAINERS,
        {"containers": [{"name": "a", "$patch": "delete"}]},
        {"containers": [{"name": "b", "image": "1"}]},
    ),
    (_CONTAINERS, {"containers": [{"$patch": "replace"}, {"name": "c"}]}, {"containers": [{"name": "c"}]}),
    (
        _CONTAINERS,
        {"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}], "containers": [{"name": "c"}]},
        {"containers": [{"name": "c"}, {"name": "a", "image": "1"}, {"name": "b", "image": "1"}]},
    ),
    ({"taints": [{"key": "a"}]}, {"taints": [{"key": "b"}]}, {"taints": [{"key": "b"}]}),
    (
        {"conditions": [{"type": "A", "x": 1}]},
        {"conditions": [{"type": "A", "y": 2}]},
        {"conditions": [{"type": "A", "x": 1, "y": 2}]},
    ),
    ({"finalizers": ["a"]}, {"finalizers": ["b", "a"]}, {"finalizers": ["a", "b"]}),
    ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
    (
        {"s": {"type": "A", "rolling": {}}},
        {"s": {"$retainKeys": ["type"], "type": "B"}},
        {"s": {"type": "B"}},
    ),
    ({"m": {"a": 1, "b": 2}}, {"m": {"$patch": "replace", "c": 3}}, {"m": {"c": 3}}),
    ({"labels": {"a": "1", "b": "2"}}, {"labels": {"a": None}}, {"labels": {"b": "2"}}),
    ({}, {"ownerReferences": [{"uid": "1"}]}, {"ownerReferences": [{"uid": "1"}]}),
]


@pytest.mark.parametrize(("target", "patch", "result"), _STRATEGIC)
def test_strategic_merge_patch_merges_lists_by_their_key(target: Any, patch: Any, result: Any) -> None:
    before = json.dumps(target)
    assert strategic_merge(target, patch) == result
    assert json.dumps(target) == before


@pytest.mark.parametrize("patch", [{"m": {"$patch": "destroy"}}, {"containers": [{"image": "no key"}]}])
def test_a_strategic_patch_without_sense_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(StatusError) as failure:
        strategic_merge({"m": {}, "containers": []}, patch)
    assert failure.value.code == 400


_LABELS = {"app": "web", "tier": "2", "nvidia.com/gpu.deploy.dcgm": "true"}


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        ("", True),
        ("app=web", True),
        ("app==web,tier=2", True),
        ("app = web , tier != 3", True),
        ("app!=web", False),
        ("other!=web", True),
        ("other=", False),
        ("app", True),
        ("!app", False),
        ("!other", True),
        ("app in (web, db)", True),
        ("app notin (web,db)", False),
        ("other notin (web)", True),
        ("tier>1", True),
        ("tier<2", False),
        ("nvidia.com/gpu.deploy.dcgm=true,app in (db)", False),
    ],
)
def test_label_selectors_select(selector: str, matches: bool) -> None:
    assert label_selector(selector)({"metadata": {"labels": _LABELS}}) is matches


@pytest.mark.parametrize("selector", ["app=web=db", "=web", "app in web", "a b"])
def test_a_label_selector_that_cannot_be_read_is_a_bad_request(selector: str) -> None:
    with pytest.raises(StatusError) as failure:
        label_selector(selector)
    assert failure.value.code == 400


@pytest.mark.parametrize(
    ("selector", "matches"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "web"}}, True),
        ({"matchLabels": {"app": "db"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, False),
        ({"matchExpressions": [{"key": "x", "operator": "DoesNotExist"}]}, True),
        ({"matchExpressions": [{"key": "x", "operator": "Exists"}]}, False),
    ],
)
def test_label_selector_objects_select(selector: Any, matches: bool) -> None:
    assert label_matches(selector, _LABELS) is matches


def test_field_selectors_know_the_fields_of_their_kind() -> None:
    obj = {"metadata": {"name": "p"}, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    assert field_selector(PODS, "spec.nodeName=n,status.phase!=Failed")(obj)
    assert not field_selector(PODS, "spec.nodeName!=n")(obj)
    assert field_selector(NODES, "spec.unschedulable=false")(obj)
    assert field_selector(EVENTS, "involvedObject.name=")({"involvedObject": {}})
    with pytest.raises(StatusError) as failure:
        field_selector(CONFIGMAPS, "data.x=1")
    assert "field label not supported: data.x" in failure.value.message
