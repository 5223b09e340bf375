"""Which form of an answer the client accepts, and the answer in that form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import yaml

from mig_manager.simulation.api import protobuf
from mig_manager.simulation.api.status import bad_request, not_acceptable, unsupported_media
from mig_manager.simulation.api.tables import partial, table
from mig_manager.simulation.objects import Object, Resource

JSON: Final = "application/json"
YAML: Final = "application/yaml"
_FORMS = ("Table", "PartialObjectMetadata", "PartialObjectMetadataList")


@dataclass(frozen=True, slots=True)
class Form:
    """A form of answer that we can give."""

    media: Literal["application/json", "application/yaml"]
    kind: str
    """Table, PartialObjectMetadata, PartialObjectMetadataList; empty for the objects as they are."""
    include: str = "Metadata"

    def shape(self, resource: Resource, answer: Object, *, headers: bool = True) -> Object:
        """An object or list of the resource in this form; a Status is always itself."""
        if answer.get("kind") == "Status" or not self.kind:
            return answer
        items = answer.get("items")
        if self.kind == "Table":
            objects = [answer] if items is None else items
            meta = answer.get("metadata") if items is not None else _version(answer)
            return table(resource, objects, meta or {}, include=self.include, headers=headers)
        if items is None:
            return partial(answer)
        return {
            "kind": "PartialObjectMetadataList",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": answer["metadata"],
            "items": [partial(each) for each in items],
        }

    def write(self, answer: Object) -> bytes:
        """As bytes of the media type."""
        if self.media == YAML:
            return yaml.safe_dump(answer, sort_keys=False).encode()
        return dump(answer) + b"\n"


def dump(value: Object) -> bytes:
    """Compact JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def accepted(header: str, query: Mapping[str, str]) -> Form:
    """The first form of an Accept header that we have; StatusError 406 if there is none."""
    include = query.get("includeObject") or "Metadata"
    if include not in ("None", "Metadata", "Object"):
        raise bad_request(f'unrecognized includeObject value: "{include}"')
    for media, options in _ranked(header or "*/*"):
        if options.get("stream", "watch") != "watch":
            continue
        if media in (JSON, "*/*", "application/*"):
            kind = options.get("as", "")
            ours = options.get("g", "meta.k8s.io") == "meta.k8s.io" and options.get("v", "v1") == "v1"
            if not kind or (kind in _FORMS and ours):
                return Form(JSON, kind, include)
        elif media == YAML and "as" not in options:
            return Form(YAML, "")
    raise not_acceptable()


def read_body(content_type: str, body: bytes) -> Any:
    """The body of a request, None if it is empty; StatusError 415 or 400 if it cannot be read."""
    if not body:
        return None
    media = content_type.partition(";")[0].strip().lower()
    try:
        if media in ("", JSON, "*/*") or media.endswith("+json"):
            return json.loads(body)
        if media in (YAML, "application/apply-patch+yaml"):
            return yaml.safe_load(body)
    except (ValueError, yaml.YAMLError) as error:
        raise bad_request(f"couldn't get version/kind; json parse error: {error}") from None
    if media == protobuf.MEDIA:
        return protobuf.read_protobuf(body)
    raise unsupported_media(f"{JSON}, {YAML}")


def _ranked(header: str) -> list[tuple[str, dict[str, str]]]:
    """Media types with their parameters, best first."""
    ranked = []
    for part in header.split(","):
        media, *rest = (each.strip() for each in part.split(";"))
        options = dict(each.split("=", 1) for each in rest if "=" in each)
        ranked.append((media.lower(), options))
    return sorted(ranked, key=lambda each: -float(each[1].get("q", 1)))


def _version(obj: Object) -> Object:
    return {"resourceVersion": obj.get("metadata", {}).get("resourceVersion", "")}
