from __future__ import annotations

from typing import Any

import pytest

from mig_manager.simulation.objects import Object
from mig_manager.simulation.resources import DEPLOYMENTS, LEASES, PODS, REPLICA_SETS
from mig_manager.simulation.store import MemoryStore
from tests.simulation.api.clients import (
    APPLY,
    JSON_PATCH,
    MAPS,
    MERGE,
    NODES,
    STRATEGIC,
    Http,
    config_map,
    node,
    pod,
)
from tests.simulation.api.clients import (
    PODS as POD_PATH,
)

LEASE_PATH = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
_PARTIAL = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_PARTIAL_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


def test_an_object_lives_from_create_to_delete(http: Http) -> None:
    made = http.made(MAPS, config_map("a", x="1"))
    assert made["metadata"]["namespace"] == "default"
    assert http("GET", f"{MAPS}/a").body == made
    made["data"]["x"] = "2"
    replaced = http("PUT", f"{MAPS}/a", made)
    assert (replaced.code, replaced.body["data"]) == (200, {"x": "2"})
    assert int(replaced.body["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    stale = http("PUT", f"{MAPS}/a", made)
    assert (stale.code, stale.body["reason"]) == (409, "Conflict")
    assert stale.body["message"] == (
        'Operation cannot be fulfilled on configmaps "a": the object has been modified; please apply your '
        "changes to the latest version and try again"
    )
    gone = http("DELETE", f"{MAPS}/a")
    assert (gone.code, gone.body["status"]) == (200, "Success")
    assert gone.body["details"] == {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
    assert http("GET", f"{MAPS}/a").body == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'configmaps "a" not found',
        "reason": "NotFound",
        "details": {"name": "a", "kind": "configmaps"},
        "code": 404,
    }


def test_generated_names_end_in_five_letters(http: Http) -> None:
    made = http.made(MAPS, {"metadata": {"generateName": "some-"}})
    assert made["metadata"]["name"].startswith("some-")
    assert len(made["metadata"]["name"]) == len("some-") + 5


_LABEL_ADVICE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must "
    "start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for "
    "validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


@pytest.mark.parametrize(
    ("method", "path", "body", "content_type", "code", "reason", "message"),
    [
        ("GET", "/api/v1/things", None, "", 404, "NotFound", "could not find the requested resource"),
        ("GET", "/apis/apps/v2/daemonsets", None, "", 404, "NotFound", "could not find the requested"),
        ("GET", "/api/v1/pods/p", None, "", 404, "NotFound", "could not find the requested resource"),
        ("DELETE", f"{NODES}/no", None, "", 404, "NotFound", 'nodes "no" not found'),
        ("POST", f"{NODES}/a", {}, "", 405, "MethodNotAllowed", "does not allow this method"),
        ("PUT", NODES, {}, "", 405, "MethodNotAllowed", "does not allow this method"),
        ("POST", NODES, node("a"), "", 409, "AlreadyExists", 'nodes "a" already exists'),
        ("POST", NODES, None, "", 400, "BadRequest", "Required body is missing"),
        ("POST", NODES, b"{", "", 400, "BadRequest", "json parse error"),
        ("POST", NODES, config_map("b"), "", 400, "BadRequest", "cannot be handled as a Node"),
        ("POST", NODES, {"metadata": {}}, "", 422, "Invalid", "name or generateName is required"),
        ("POST", NODES, {"metadata": {"name": "A_b"}}, "", 422, "Invalid", "a lowercase RFC 1123 subdomain"),
        (
            "POST",
            "/api/v1/namespaces/absent/configmaps",
            config_map("a"),
            "",
            404,
            "NotFound",
            'namespaces "absent" not found',
        ),
        (
            "POST",
            MAPS,
            {"metadata": {"name": "a", "namespace": "other"}},
            "",
            400,
            "BadRequest",
            "the namespace of the provided object does not match the namespace sent on the request",
        ),
        (
            "POST",
            MAPS,
            config_map("a", **{"no/slash": "x"}),
            "",
            422,
            "Invalid",
            "a valid config key must consist of",
        ),
        (
            "POST",
            MAPS,
            {"metadata": {"name": "a"}, "data": {"x": 1}},
            "",
            400,
            "BadRequest",
            'ConfigMap in version "v1" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go '
            "struct field ConfigMap.data of type string",
        ),
        (
            "PATCH",
            f"{NODES}/a",
            {"metadata": {"labels": {"x": "bad value!"}}},
            MERGE,
            422,
            "Invalid",
            f'Node "a" is invalid: metadata.labels: Invalid value: "bad value!": {_LABEL_ADVICE}',
        ),
        (
            "PATCH",
            f"{NODES}/a",
            {"metadata": {"labels": {"x": 1}}},
            MERGE,
            422,
            "Invalid",
            "cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
        ),
        (
            "PATCH",
            f"{NODES}/a",
            {"spec": {"taints": [{"key": "a", "effect": "Never"}]}},
            STRATEGIC,
            422,
            "Invalid",
            'spec.taints[0].effect: Unsupported value: "Never"',
        ),
        (
            "PATCH",
            f"{NODES}/a",
            {"metadata": {"name": "b"}},
            MERGE,
            400,
            "BadRequest",
            "the name of the object (b) does not match the name on the URL (a)",
        ),
        (
            "PATCH",
            f"{NODES}/a",
            {"metadata": {"uid": "other"}},
            MERGE,
            409,
            "Conflict",
            "Precondition failed: UID in precondition: other, UID in object meta: ",
        ),
        (
            "PATCH",
            f"{NODES}/a",
            {"metadata": {"resourceVersion": "1", "labels": {"x": "y"}}},
            MERGE,
            409,
            "Conflict",
            "the object has been modified",
        ),
        (
            "PATCH",
            f"{NODES}/a",
            [{"op": "test", "path": "/metadata/labels/no", "value": "x"}],
            JSON_PATCH,
            422,
            "Invalid",
            "the server rejected our request due to an error in our request",
        ),
        (
            "PATCH",
            f"{NODES}/a",
            {},
            "text/plain",
            415,
            "UnsupportedMediaType",
            "accepted media types include",
        ),
        ("PATCH", f"{NODES}/a", {}, "application/json", 415, "UnsupportedMediaType", "strategic-merge-patch"),
        ("PATCH", f"{NODES}/a", node("a"), APPLY, 422, "Invalid", "fieldManager: Required value"),
        (
            "PATCH",
            f"{NODES}/a?fieldValidation=Strict",
            {"spec": {"unschedulabel": True}},
            MERGE,
            400,
            "BadRequest",
            'strict decoding error: unknown field "spec.unschedulabel"',
        ),
        (
            "PUT",
            f"{LEASE_PATH}/l",
            {"metadata": {"name": "l"}},
            "",
            422,
            "Invalid",
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update",
        ),
        (
            "POST",
            LEASE_PATH,
            {"metadata": {"name": "l2"}, "spec": {"leaseDurationSeconds": 0}},
            "",
            422,
            "Invalid",
            "spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0",
        ),
        (
            "POST",
            LEASE_PATH,
            {"metadata": {"name": "l2"}, "spec": {"renewTime": "2026-01-02T03:04:05Z"}},
            "",
            400,
            "BadRequest",
            'Lease in version "v1" cannot be handled as a Lease: parsing time "2026-01-02T03:04:05Z" as',
        ),
        ("GET", f"{NODES}?labelSelector=a=b=c", None, "", 400, "BadRequest", "unable to parse requirement"),
        ("GET", f"{NODES}?fieldSelector=spec.x=1", None, "", 400, "BadRequest", "field label not supported"),
        (
            "GET",
            f"{NODES}?resourceVersion=9999",
            None,
            "",
            504,
            "Timeout",
            "Too large resource version: 9999",
        ),
        ("DELETE", f"{NODES}/a?dryRun=Some", None, "", 422, "Invalid", "dryRun: Unsupported value"),
        (
            "DELETE",
            f"{NODES}/a",
            {"preconditions": {"uid": "x"}},
            "",
            409,
            "Conflict",
            "UID in the precondition (x)",
        ),
        (
            "DELETE",
            f"{NODES}/a",
            {"preconditions": {"resourceVersion": "x"}},
            "",
            409,
            "Conflict",
            "the ResourceVersion in the precondition (x) does not match the ResourceVersion in record (",
        ),
    ],
)
def test_what_is_refused_and_how(
    http: Http,
    store: MemoryStore,
    method: str,
    path: str,
    body: Any,
    content_type: str,
    code: int,
    reason: str,
    message: str,
) -> None:
    http.made(NODES, node("a"))
    store.create(LEASES, {"metadata": {"name": "l"}})
    before = store.version
    answer = http(method, path, body, **({"content-type": content_type} if content_type else {}))
    assert (answer.code, answer.body["code"], answer.body["reason"]) == (code, code, reason)
    assert message in answer.body["message"]
    assert store.version == before


def test_an_invalid_object_names_the_field(http: Http) -> None:
    body = node("a")
    body["metadata"]["labels"] = {"ok": "no!", "-x": "fine"}
    answer = http("POST", NODES, body)
    assert answer.body["details"]["kind"] == "Node"
    assert [(each["reason"], each["field"]) for each in answer.body["details"]["causes"]] == [
        ("FieldValueInvalid", "metadata.labels"),
        ("FieldValueInvalid", "metadata.labels"),
    ]


@pytest.mark.parametrize(
    ("accept", "code"),
    [
        ("application/json", 200),
        ("*/*", 200),
        ("application/vnd.kubernetes.protobuf,application/json", 200),
        ("application/cbor,application/vnd.kubernetes.protobuf;q=0.5,application/json;q=0.1", 200),
        ("application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json", 200),
        ("application/vnd.kubernetes.protobuf", 406),
        ("application/cbor", 406),
        ("application/json;as=Table;v=v9;g=meta.k8s.io", 406),
    ],
)
def test_clients_get_json_if_they_accept_it(http: Http, accept: str, code: int) -> None:
    answer = http("GET", NODES, accept=accept)
    assert (answer.code, answer.body["kind"]) == (code, "NodeList" if code == 200 else "Status")


def test_metadata_alone_is_served_for_one_object_and_for_many(http: Http) -> None:
    http.made(NODES, node("a", x="1"))
    one = http("GET", f"{NODES}/a", accept=_PARTIAL).body
    assert set(one) == {"kind", "apiVersion", "metadata"}
    assert (one["kind"], one["apiVersion"]) == ("PartialObjectMetadata", "meta.k8s.io/v1")
    many = http("GET", NODES, accept=_PARTIAL_LIST).body
    assert (many["kind"], many["items"]) == ("PartialObjectMetadataList", [one])
    patched = http(
        "PATCH", f"{NODES}/a", {"metadata": {"labels": {"y": "2"}}}, content_type=MERGE, accept=_PARTIAL
    )
    assert set(patched.body) == {"kind", "apiVersion", "metadata"}


def test_tables_have_a_row_for_each_object(http: Http) -> None:
    http.made(NODES, node("a", **{"node-role.kubernetes.io/gpu": ""}))
    table = http("GET", NODES, accept=_TABLE).body
    names = [each["name"] for each in table["columnDefinitions"] if each["priority"] == 0]
    assert names == ["Name", "Status", "Roles", "Age", "Version"]
    assert table["rows"][0]["cells"][:3] == ["a", "Ready", "gpu"]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"
    whole = http("GET", f"{NODES}?includeObject=Object", accept=_TABLE).body
    assert whole["rows"][0]["object"]["status"]["capacity"]["cpu"] == "8"
    bare = http("GET", f"{NODES}?includeObject=None", accept=_TABLE).body
    assert set(bare["rows"][0]) == {"cells"}


def test_lists_come_in_pages_of_one_version(http: Http, store: MemoryStore) -> None:
    for i in range(5):
        http.made(MAPS, config_map(f"m-{i}"))
    first = http("GET", f"{MAPS}?limit=2").body
    assert first["metadata"]["remainingItemCount"] == 3
    http("DELETE", f"{MAPS}/m-3")
    http.made(MAPS, config_map("m-9"))
    token = first["metadata"]["continue"]
    rest = http("GET", f"{MAPS}?limit=9&continue={token}").body
    names = [each["metadata"]["name"] for each in first["items"] + rest["items"]]
    assert names == [f"m-{i}" for i in range(5)]
    assert "continue" not in rest["metadata"]
    assert rest["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
    store.compact()
    late = http("GET", f"{MAPS}?limit=2&continue={token}")
    assert (late.code, late.body["reason"]) == (410, "Expired")


def test_items_of_a_list_carry_no_kind(http: Http) -> None:
    http.made(NODES, node("a"))
    body = http("GET", f"{NODES}?fieldSelector=metadata.name=a").body
    assert [set(each) for each in body["items"]] == [{"metadata", "spec", "status"}]


def _dry_runs() -> list[Any]:
    patch: Object = {"metadata": {"labels": {"x": "y"}}}
    return [
        ("POST", MAPS, config_map("new"), "application/json", 201),
        ("PUT", f"{MAPS}/a", config_map("a", x="9"), "application/json", 200),
        ("PATCH", f"{MAPS}/a", patch, MERGE, 200),
        ("PATCH", f"{MAPS}/new?fieldManager=m", config_map("new"), APPLY, 201),
        ("DELETE", f"{MAPS}/a", None, "application/json", 200),
        ("DELETE", MAPS, None, "application/json", 200),
        ("POST", f"{POD_PATH}/p/eviction", {"metadata": {"name": "p"}}, "application/json", 201),
    ]


@pytest.mark.parametrize(("method", "path", "body", "content_type", "code"), _dry_runs())
def test_a_dry_run_answers_and_changes_nothing(
    http: Http, store: MemoryStore, method: str, path: str, body: Any, content_type: str, code: int
) -> None:
    http.made(MAPS, config_map("a", x="1"))
    store.create(PODS, pod("p"))
    before = store.version
    joint = "&" if "?" in path else "?"
    answer = http(method, f"{path}{joint}dryRun=All", body, content_type=content_type)
    assert answer.code == code
    assert store.version == before


def test_status_and_spec_are_written_apart(http: Http, store: MemoryStore) -> None:
    http.made(NODES, node("a"))
    both: Object = {"spec": {"unschedulable": True}, "status": {"allocatable": {"cpu": "1"}}}
    main = http("PATCH", f"{NODES}/a", both, content_type=STRATEGIC).body
    assert (main["spec"].get("unschedulable"), main["status"]["allocatable"]["cpu"]) == (True, "8")
    both["spec"]["unschedulable"] = None
    status = http("PATCH", f"{NODES}/a/status", both, content_type=STRATEGIC).body
    assert (status["spec"].get("unschedulable"), status["status"]["allocatable"]["cpu"]) == (True, "1")
    made = http.made(POD_PATH, {**pod("p", on=None), "status": {"phase": "Running"}})
    assert made["status"]["phase"] == "Pending"


def test_a_pod_keeps_its_spec(http: Http, store: MemoryStore) -> None:
    store.create(PODS, pod("p"))
    answer = http("PATCH", f"{POD_PATH}/p", {"spec": {"nodeName": "other"}}, content_type=MERGE)
    assert (answer.code, answer.body["details"]["causes"][0]["reason"]) == (422, "FieldValueForbidden")
    labelled = http("PATCH", f"{POD_PATH}/p", {"metadata": {"labels": {"x": "y"}}}, content_type=MERGE)
    assert labelled.code == 200


def test_deleting_a_pod_shows_it_until_its_grace_is_over(http: Http, store: MemoryStore) -> None:
    store.create(PODS, pod("p"))
    deleted = http("DELETE", f"{POD_PATH}/p", {"gracePeriodSeconds": 7})
    assert deleted.body["metadata"]["deletionGracePeriodSeconds"] == 7
    assert http("GET", f"{POD_PATH}/p").code == 200
    assert http("DELETE", f"{POD_PATH}/p?gracePeriodSeconds=0").body["kind"] == "Pod"
    assert http("GET", f"{POD_PATH}/p").code == 404


def _owned(store: MemoryStore) -> None:
    labels = {"app": "w"}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    deployment = store.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec})
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d", "uid": deployment["metadata"]["uid"]}
    store.create(REPLICA_SETS, {"metadata": {"name": "r", "ownerReferences": [owner]}, "spec": spec})
    held = store.get(REPLICA_SETS, "default", "r")
    assert held is not None
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": held["metadata"]["uid"]}
    made = pod("p")
    made["metadata"]["ownerReferences"] = [owner]
    store.create(PODS, made)


@pytest.mark.parametrize("policy", ["Background", "Foreground", "Orphan"])
def test_dependents_follow_their_owner_or_are_orphaned(http: Http, store: MemoryStore, policy: str) -> None:
    _owned(store)
    path = "/apis/apps/v1/namespaces/default"
    http("DELETE", f"{path}/deployments/d", {"propagationPolicy": policy})
    ending = http("GET", f"{POD_PATH}/p").body["metadata"]
    assert ("deletionTimestamp" in ending) is (policy != "Orphan")
    if policy == "Orphan":
        assert http("GET", f"{path}/replicasets/r").body["metadata"]["ownerReferences"] == []
        assert http("GET", f"{path}/deployments/d").code == 404
        return
    waiting = http("GET", f"{path}/deployments/d")
    assert waiting.code == (200 if policy == "Foreground" else 404)
    store.remove(PODS, "default", "p", ending["uid"])
    assert store.list(REPLICA_SETS)[0] == []
    assert store.list(DEPLOYMENTS)[0] == []


def test_a_namespace_takes_its_objects_along(http: Http) -> None:
    http.made("/api/v1/namespaces", {"metadata": {"name": "gpu-operator"}})
    http.made("/api/v1/namespaces/gpu-operator/configmaps", config_map("a"))
    http("DELETE", "/api/v1/namespaces/gpu-operator")
    assert http("GET", "/api/v1/configmaps").body["items"] == []


def test_events_are_the_same_in_both_groups(http: Http) -> None:
    http.made(
        "/apis/events.k8s.io/v1/namespaces/default/events",
        {
            "metadata": {"name": "e"},
            "regarding": {"kind": "Node", "name": "gpu-1"},
            "note": "hello",
            "type": "Normal",
            "reason": "Greeting",
            "reportingController": "test",
        },
    )
    core = http("GET", "/api/v1/events?fieldSelector=involvedObject.name=gpu-1,reason=Greeting").body["items"]
    assert [(each["message"], each["reportingComponent"]) for each in core] == [("hello", "test")]
    new = http("GET", "/apis/events.k8s.io/v1/namespaces/default/events/e").body
    assert (new["apiVersion"], new["note"]) == ("events.k8s.io/v1", "hello")


def test_scale_is_read_and_written_apart(http: Http, store: MemoryStore) -> None:
    _owned(store)
    path = "/apis/apps/v1/namespaces/default/deployments/d/scale"
    scale = http("GET", path).body
    assert (scale["kind"], scale["spec"], scale["status"]["selector"]) == ("Scale", {"replicas": 1}, "app=w")
    assert http("PATCH", path, {"spec": {"replicas": 3}}, content_type=MERGE).body["spec"] == {"replicas": 3}
    held = store.get(DEPLOYMENTS, "default", "d")
    assert held is not None
    assert held["spec"]["replicas"] == 3
    assert http("PUT", path, scale).code == 409


def test_a_lease_can_be_put_into_being(http: Http) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l"
    assert http("PUT", path, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}).code == 201
    assert http("GET", path).body["spec"]["holderIdentity"] == "me"


def test_applied_fields_belong_to_who_applies_them(http: Http) -> None:
    def apply(manager: str, *, force: bool = False, **data: str) -> Any:
        query = f"fieldManager={manager}&force={str(force).lower()}"
        return http("PATCH", f"{MAPS}/a?{query}", config_map("a", **data), content_type=APPLY)

    assert apply("one", x="1", y="1").code == 201
    same = http("GET", f"{MAPS}/a").body
    assert apply("one", x="1", y="1").body == same
    assert apply("two", y="1", z="1").body["data"] == {"x": "1", "y": "1", "z": "1"}
    assert apply("one", x="1").body["data"] == {"x": "1", "y": "1", "z": "1"}
    assert apply("two", z="1").body["data"] == {"x": "1", "z": "1"}
    refused = apply("two", x="2", z="1")
    assert (refused.code, refused.body["reason"]) == (409, "Conflict")
    assert refused.body["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.x'
    forced = apply("two", force=True, x="2", z="1")
    assert forced.body["data"] == {"x": "2", "z": "1"}
    assert apply("one").body["data"] == {"x": "2", "z": "1"}
    http("PATCH", f"{MAPS}/a", {"data": {"w": "0"}}, content_type=MERGE)
    assert apply("two").body["data"] == {"w": "0"}


def test_pod_logs_are_text(http: Http, store: MemoryStore) -> None:
    store.create(PODS, pod("p"))
    store.create(PODS, pod("q", on=None))
    assert "p/main" in http("GET", f"{POD_PATH}/p/log?container=main&tailLines=1").body
    assert "waiting to start" in http("GET", f"{POD_PATH}/q/log").body["message"]
    assert http("GET", f"{POD_PATH}/p/log?container=no").code == 400
