"""Where the layouts of a cluster are written down."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mig_manager.cli.errors import InputError
from mig_manager.cluster.client import collection_path, object_path
from mig_manager.cluster.objects import ConfigMap
from mig_manager.cluster.refusal import ApiError
from mig_manager.layouts.schema import parse_layouts, read_layouts

if TYPE_CHECKING:
    from mig_manager.cluster.client import Api
    from mig_manager.layouts.book import LayoutBook

CONFIG_MAP = "mig-manager-layouts"
"""The name that chart and manifests give it."""
_KEY = "config.yaml"


@dataclass(frozen=True, slots=True)
class Source:
    """The layouts that somebody has written, and where."""

    book: LayoutBook | None
    """None where there are none: then those generated from the hardware serve alone."""
    words: str
    """Where they are from, or why there are none."""


def layout_source(api: Api, file: Path | None, config_map: str | None) -> Source:
    """The layouts of a file, of a ConfigMap (`namespace/name`), or of the ConfigMap that the cluster has.

    Raises:
        InputError: there is no such ConfigMap, or it cannot be told which of several it is.
        LayoutFileError: what is written there cannot be used.
        ApiError: the API server refuses.
    """
    if file is not None:
        return Source(read_layouts(file), str(file))
    if config_map is not None:
        if not all(parts := config_map.split("/")) or len(parts) != 2:
            raise InputError(
                f"--config-map {config_map}: write NAMESPACE/NAME, such as mig-manager/{CONFIG_MAP}"
            )
        return config_map_source(api, config_map)
    try:
        query = {"fieldSelector": f"metadata.name={CONFIG_MAP}"}
        items = api.get(collection_path("configmaps"), query).get("items") or ()
    except ApiError as error:
        if error.status != 403:
            raise
        return Source(
            None, "only those of the hardware: ConfigMaps may not be listed, so name it by --config-map"
        )
    if not items:
        return Source(None, f"only those of the hardware: there is no ConfigMap {CONFIG_MAP}")
    if len(items) > 1:
        places = ", ".join(sorted(f"{each['metadata']['namespace']}/{CONFIG_MAP}" for each in items))
        raise InputError(
            f"there are several ConfigMaps with layouts: {places}; name one of them by --config-map"
        )
    return _parsed(ConfigMap.from_json(items[0]), _KEY)


def config_map_source(api: Api, place: str, key: str = _KEY) -> Source:
    """The layouts of one ConfigMap, `namespace/name`. Raises as `layout_source`."""
    namespace, _, name = place.partition("/")
    try:
        found = api.get(object_path("configmaps", name, namespace=namespace))
    except ApiError as error:
        if error.status != 404:
            raise
        raise InputError(f"there is no ConfigMap {place}") from error
    return _parsed(ConfigMap.from_json(found), key)


def _parsed(found: ConfigMap, key: str) -> Source:
    place = f"{found.namespace}/{found.name}"
    if key not in found.data:
        keys = ", ".join(map(repr, sorted(found.data))) or "none"
        raise InputError(f"ConfigMap {place} has no key {key!r}; its keys: {keys}")
    book = parse_layouts(found.data[key], file=f"{place}/{key}")
    return Source(book, f"ConfigMap {place}")
