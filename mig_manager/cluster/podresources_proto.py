"""The kubelet's PodResources API, version v1, as far as it is used here.

Field numbers are those of kubernetes/kubernetes,
staging/src/k8s.io/kubelet/pkg/apis/podresources/v1/api.proto. A field that is not listed is skipped when a
message is read. Importing this module loads protobuf.
"""

from __future__ import annotations

from collections.abc import Mapping

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClassesForFiles

PACKAGE = "v1"
SERVICE = "v1.PodResourcesLister"

METHODS = {
    "List": ("ListPodResourcesRequest", "ListPodResourcesResponse"),
    "GetAllocatableResources": ("AllocatableResourcesRequest", "AllocatableResourcesResponse"),
}
"""Names of the request and the response message of each method."""

_FIELDS: Mapping[str, Mapping[int, tuple[str, str | list[str]]]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {1: ("pod_resources", ["PodResources"])},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {1: ("devices", ["ContainerDevices"])},
    "PodResources": {
        1: ("name", "string"),
        2: ("namespace", "string"),
        3: ("containers", ["ContainerResources"]),
    },
    "ContainerResources": {
        1: ("name", "string"),
        2: ("devices", ["ContainerDevices"]),
        5: ("dynamic_resources", ["DynamicResource"]),
    },
    "ContainerDevices": {1: ("resource_name", "string"), 2: ("device_ids", ["string"])},
    "DynamicResource": {4: ("claim_resources", ["ClaimResource"])},
    "ClaimResource": {
        2: ("driver_name", "string"),
        3: ("pool_name", "string"),
        4: ("device_name", "string"),
    },
}
"""Fields by message and number: the name, and `string` or the name of a message; repeated ones in a list."""


def _messages() -> Mapping[str, type[Message]]:
    file = FileDescriptorProto(name="podresources/v1/api.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _FIELDS.items():
        message = DescriptorProto(name=name)
        for number, (field, kind) in fields.items():
            message.field.append(_field(number, field, kind))
        file.message_type.append(message)
    # A pool of its own: another library may have brought a package v1 into the common one.
    pool = DescriptorPool()
    pool.Add(file)
    classes = GetMessageClassesForFiles([file.name], pool)
    return {name: classes[f"{PACKAGE}.{name}"] for name in _FIELDS}


def _field(number: int, name: str, kind: str | list[str]) -> FieldDescriptorProto:
    repeated = isinstance(kind, list)
    one = kind[0] if isinstance(kind, list) else kind
    field = FieldDescriptorProto(name=name, number=number)
    field.label = FieldDescriptorProto.LABEL_REPEATED if repeated else FieldDescriptorProto.LABEL_OPTIONAL
    if one == "string":
        field.type = FieldDescriptorProto.TYPE_STRING
    else:
        field.type = FieldDescriptorProto.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{one}"
    return field


MESSAGES = _messages()
"""The message classes by name."""
