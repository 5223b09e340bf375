"""Some objects of one kind on the API server: how they are read, and how their changes are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from mig_manager.cluster.client import JSON, METADATA, METADATA_LIST, Api
from mig_manager.cluster.objects import JsonObject
from mig_manager.cluster.refusal import ApiError

if TYPE_CHECKING:
    import urllib3


class Selection:
    """All objects of a collection, those of selectors, or the one of a name."""

    def __init__(
        self,
        api: Api,
        path: str,
        *,
        title: str,
        field_selector: str = "",
        label_selector: str = "",
        name: str = "",
        metadata_only: bool = False,
    ) -> None:
        """`title` names the objects in messages: `Node gpu-1`. With `name` there is no other field selector."""
        self._api = api
        self._path = path
        self.title = title
        self.name = name
        fields = f"metadata.name={name}" if name else field_selector
        selectors = {"fieldSelector": fields, "labelSelector": label_selector}
        self._query = {key: value for key, value in selectors.items() if value}
        self._accept, self._accept_list = (METADATA, METADATA_LIST) if metadata_only else (JSON, JSON)
        self._list_denied: ApiError | None = None

    @property
    def resource(self) -> str:
        """The plural of their kind: `pods`."""
        return self._path.rpartition("/")[2]

    def read(self) -> tuple[Sequence[JsonObject], str]:
        """The objects, and the resourceVersion of that state.

        Where the list is not permitted, the object of a name is read by itself. Raises ApiError.
        """
        if self._list_denied is None:
            try:
                return self._list()
            except ApiError as error:
                if error.status != 403 or not self.name:
                    raise
                self._list_denied = error
        try:
            return self._read_alone()
        except ApiError as error:
            if error.status != 403:
                raise
            denied, self._list_denied = self._list_denied, None
            raise denied from error

    def stream(self, version: str, seconds: int, silence_s: float) -> urllib3.BaseHTTPResponse:
        """Ask for the changes after a version, for so many seconds; see `Api.stream`. Raises ApiError."""
        query = {
            **self._query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
        }
        return self._api.stream(self._path, query, accept=self._accept, silence_s=silence_s)

    def _list(self) -> tuple[Sequence[JsonObject], str]:
        answer = self._api.get(self._path, self._query, accept=self._accept_list)
        try:
            return answer.get("items") or (), str(answer["metadata"]["resourceVersion"])
        except (KeyError, TypeError) as error:
            raise ApiError(f"The list of {self.title} makes no sense: {error!r}") from error

    def _read_alone(self) -> tuple[Sequence[JsonObject], str]:
        try:
            item = self._api.get(f"{self._path}/{quote(self.name, safe='')}", accept=self._accept)
        except ApiError as error:
            if error.status == 404:
                return (), "0"
            raise
        return (item,), str((item.get("metadata") or {}).get("resourceVersion", "0"))
