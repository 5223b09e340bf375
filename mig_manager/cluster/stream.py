"""Reading a stream of JSON objects, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mig_manager.cluster.objects import JsonObject

if TYPE_CHECKING:
    import urllib3

_READ_SIZE = 65536


class BrokenStreamError(Exception):
    """A stream ended in the middle of something; what was read before still holds."""


def json_lines(stream: urllib3.BaseHTTPResponse) -> Iterator[JsonObject]:
    """The objects of a stream, each as soon as it is there, until the server ends the stream.

    Raises BrokenStreamError when the connection breaks or goes silent, or when a line is no JSON.
    """
    import urllib3

    pending = b""
    try:
        while received := stream.read1(_READ_SIZE):
            *lines, pending = (pending + received).split(b"\n")
            for line in lines:
                if line.strip():
                    yield json.loads(line)
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise BrokenStreamError from error
