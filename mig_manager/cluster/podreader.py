"""A process that asks the kubelet for its PodResources: `python -m mig_manager.cluster.podreader FD`.

It takes questions from the connection whose file descriptor is its argument, one at a time, and ends when
that closes. So gRPC, which is large and never leaves a process again, is only there while it is needed.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from urllib.parse import quote

import grpc
from google.protobuf.json_format import MessageToDict

from mig_manager.cluster.podresources_proto import MESSAGES, METHODS, SERVICE

_LARGEST = 16 * 1024 * 1024
"""Bytes of an answer; the kubelet's own clients allow as many."""
_RETRIES = {
    "name": [{"service": SERVICE}],
    "retryPolicy": {
        "maxAttempts": 5,
        "initialBackoff": "0.1s",
        "maxBackoff": "1s",
        "backoffMultiplier": 2,
        # The kubelet ends in the middle of a call when it restarts, and lets only so many calls a second pass.
        "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"],
    },
}
_OPTIONS = (
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    ("grpc.max_receive_message_length", _LARGEST),
    ("grpc.service_config", json.dumps({"methodConfig": [_RETRIES]})),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def ask(socket: str, method: str, timeout_s: float) -> dict[str, object]:
    """One call to the kubelet: the answer as protobuf's JSON, with field names as in the .proto file.

    A socket that is not there (yet) and a kubelet that restarts are waited for. Raises grpc.RpcError.
    """
    request, response = (MESSAGES[name] for name in METHODS[method])
    # A channel a call: the socket of a kubelet that has restarted is another one.
    with grpc.insecure_channel(f"unix:{quote(socket)}", options=_OPTIONS) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        answer = call(request(), timeout=timeout_s, wait_for_ready=True)
        return MessageToDict(answer, preserving_proto_field_name=True)


def main() -> None:
    """Answer each (socket, method, seconds) with (answer, None) or (None, why there is none)."""
    connection = Connection(int(sys.argv[1]))
    with suppress(EOFError, OSError):
        while True:
            socket, method, timeout_s = connection.recv()
            try:
                connection.send((ask(socket, method, timeout_s), None))
            except grpc.RpcError as error:
                connection.send((None, _in_words(error, timeout_s)))


def _in_words(error: grpc.RpcError, timeout_s: float) -> str:
    status = error.code() if isinstance(error, grpc.Call) else None
    if status is grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"no answer within {timeout_s:g} s"
    details = error.details() if isinstance(error, grpc.Call) else str(error)
    return f"{status.name if status is not None else type(error).__name__}: {details}"


if __name__ == "__main__":
    main()
