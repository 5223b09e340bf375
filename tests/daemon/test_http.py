"""The pages' server: no client and no taken port stops or stalls it; and the loop's pulse that /livez asks for."""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from loguru import logger

from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.daemon.http import Answer, Limits, PageServer
from mig_manager.daemon.pulse import Pulse

QUICK = Limits(connections=8, patience_s=1, again_s=0.02)
HUGE = b"x" * 16_000_000
ASK = b"GET /hello HTTP/1.1\r\nHost: a\r\n\r\n"


def broken() -> Answer:
    raise ValueError("a mistake")


PAGES: dict[str, Callable[[], Answer]] = {
    "/hello": lambda: Answer(b"hello\n"),
    "/huge": lambda: Answer(HUGE),
    "/broken": broken,
}


@contextmanager
def log() -> Iterator[list[str]]:
    lines: list[str] = []
    sink = logger.add(lambda message: lines.append(str(message)), format="{message}")
    try:
        yield lines
    finally:
        logger.remove(sink)


def eventually(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not look():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(scope="module")
def port() -> int:
    """Of a server."""
    with log() as lines:
        PageServer(PAGES, "127.0.0.1", 0, QUICK).start()
        eventually(lambda: bool(lines))
    return int(lines[0].split(": ")[0].rpartition(":")[2])


def said(client: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    client.settimeout(60)
    found = b""
    try:
        while received := client.recv(1 << 20):
            found += received
    except ConnectionResetError:
        pass
    return found


def ask(port: int, request: bytes = ASK) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 60) as client:
        client.sendall(request)
        return said(client)


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (ASK, b"200 OK", b"hello\n"),
        (b"GET /hello?verbose=1 HTTP/1.0\r\n\r\n", b"200 OK", b"hello\n"),
        (b"HEAD /hello HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (
            b"GET /nothing HTTP/1.1\r\n\r\n",
            b"404 Not Found",
            b"Not Found: the pages are /hello, /huge, /broken\n",
        ),
        (b"GET /../hello HTTP/1.1\r\n\r\n", b"404 Not Found", None),
        (b"POST /hello HTTP/1.1\r\nContent-Length: 9\r\n\r\n", b"405 Method Not Allowed", None),
        (b"hello\r\n\r\n", b"400 Bad Request", None),
        (b"GET /hello SPDY/9\r\n\r\n", b"400 Bad Request", None),
        (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"400 Bad Request", None),
        (b"GET /broken HTTP/1.1\r\n\r\n", b"500 Internal Server Error", None),
    ],
)
def test_a_request_is_answered_and_the_connection_closed(
    port: int, request_: bytes, status: bytes, body: bytes | None
) -> None:
    head, _, content = ask(port, request_).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close" in head
    assert body is None or content == body


def send_until_cut_off(client: socket.socket, piece: bytes, pause_s: float = 0.0) -> bool:
    """Send that piece again and again; False if the server takes it for a minute."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            client.sendall(piece)
        except OSError:
            return True
        time.sleep(pause_s)
    return False


def test_headers_without_end_are_refused(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /hello HTTP/1.1\r\n")
        assert send_until_cut_off(client, b"X-Filler: " + b"x" * 4096 + b"\r\n")
    assert ask(port).endswith(b"hello\n")


def test_clients_that_send_nothing_or_too_slowly_keep_nobody_out_and_are_cut_off(port: int) -> None:
    with ExitStack() as stack:
        crowd = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            for _ in range(5 * QUICK.connections)
        ]
        assert ask(port).endswith(b"hello\n")
        silent, slow = crowd[-2:]
        assert send_until_cut_off(slow, b"x", 0.02)
        assert said(silent) == b""


def test_a_crowd_that_comes_at_once_does_not_stay() -> None:
    with log() as lines:
        PageServer(PAGES, "127.0.0.1", 0, Limits(connections=4, patience_s=60.0)).start()
        eventually(lambda: bool(lines))
    port = int(lines[0].split(": ")[0].rpartition(":")[2])
    with ExitStack() as stack:
        crowd = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(60)]
        assert ask(port).endswith(b"hello\n")
        eventually(lambda: len(crowd) - len(select.select(crowd, (), (), 0)[0]) <= 4)


def test_who_does_not_read_the_answer_is_cut_off_and_keeps_nobody_waiting(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(b"GET /huge HTTP/1.1\r\n\r\n")
        assert ask(port).endswith(b"hello\n")
        time.sleep(2 * QUICK.patience_s)
        assert len(said(client)) < len(HUGE)


def test_a_port_that_is_taken_is_said_once_and_served_once_it_is_free() -> None:
    with log() as lines, socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        PageServer(PAGES, "127.0.0.1", port, QUICK).start()
        eventually(lambda: bool(lines))
        time.sleep(5 * QUICK.again_s)
        taken.close()
        eventually(lambda: len(lines) == 2)
    assert lines[0] == f"no pages on 127.0.0.1:{port}: Address already in use; tried again every 0.02 s\n"
    assert ask(port).endswith(b"hello\n")


def test_a_loop_that_waits_for_ever_turns_when_it_is_asked_to_and_a_stuck_one_does_not() -> None:
    pulse = Pulse(fresh_s=0.0)
    turns: list[None] = []

    def turn() -> None:
        pulse.beat()
        turns.append(None)

    signal = Signal(looking=turn)
    ended = threading.Event()
    loop = threading.Thread(
        target=lambda: signal.wait(ended.is_set, Deadline.never()), name="loop", daemon=True
    )
    loop.start()
    for _ in range(3):
        turns.clear()
        eventually(lambda: pulse.silence(signal.notify) < 60 and bool(turns))
    ended.set()
    signal.notify()
    loop.join()
    pulse.silence(signal.notify)
    eventually(lambda: pulse.silence(signal.notify) > 0.02)


def test_a_loop_that_has_just_turned_is_left_alone() -> None:
    asked: list[None] = []
    assert Pulse().silence(lambda: asked.append(None)) == 0.0
    assert asked == []
