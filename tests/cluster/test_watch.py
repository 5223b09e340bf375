"""A watch follows its object whatever the server does to the connection."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from loguru import logger

from mig_manager.cluster.client import Api
from mig_manager.cluster.objects import Node, NodeMeta
from mig_manager.cluster.wait import Deadline, Signal, WaitTimeoutError
from mig_manager.cluster.watch import ObjectWatch, WatchOptions, watch_node, watch_node_meta
from mig_manager.errors import MigManagerError, Reason
from tests.cluster.hostile import Behaviour, Exchange, HostileServer

QUICK = WatchOptions(stream_s=1, silence_s=0.3, shortest_backoff_s=0.05, longest_backoff_s=0.4)
STEADY = replace(QUICK, stream_s=3600, silence_s=60)
"""As QUICK, with streams that no lack of time ends."""
SOON_S = 60.0


def see(watch: ObjectWatch[NodeMeta], signal: Signal, wanted: str | None) -> None:
    """Wait until the watch shows the label value."""

    def seen() -> bool:
        node = watch.sole
        return (node.labels.get("layout") if node else None) == wanted

    signal.wait_for(seen, Deadline.after(SOON_S), f"layout={wanted} was not seen", reason=Reason.API_ERROR)


def close_at_once(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.chunk(b"")


def close_before_answering(exchange: Exchange) -> None:
    exchange.hang_up()


def break_inside_a_chunk(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.wfile.write(b'ff\r\n{"type": "MODI')
    exchange.hang_up()


def break_between_chunks(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.hang_up()


def break_inside_a_line(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.chunk(b'{"type": "MODIFIED", "obj')
    exchange.chunk(b"")


def garbage_as_chunk_length(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.wfile.write(b"what?\r\n")
    exchange.hang_up()


def go_silent(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.stay_silent()


def never_answer(exchange: Exchange) -> None:
    exchange.stay_silent()


def error_event_410(exchange: Exchange) -> None:
    exchange.begin_stream()
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    exchange.event("ERROR", status)
    exchange.chunk(b"")


def error_event_500(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.event("ERROR", {"kind": "Status", "code": 500, "message": "etcd is unwell"})
    exchange.chunk(b"")


def answer_410(exchange: Exchange) -> None:
    exchange.refuse(410, "Expired", "too old resource version")


def answer_503_in_html(exchange: Exchange) -> None:
    exchange.answer(503, "<html>no healthy upstream</html>")


def object_without_name(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.event("MODIFIED", {"metadata": {}})
    exchange.chunk(b"")


@pytest.mark.parametrize(
    "behaviour",
    [
        close_at_once,
        close_before_answering,
        break_inside_a_chunk,
        break_between_chunks,
        break_inside_a_line,
        garbage_as_chunk_length,
        go_silent,
        never_answer,
        error_event_410,
        error_event_500,
        answer_410,
        answer_503_in_html,
        object_without_name,
    ],
)
def test_a_change_made_while_the_stream_is_bad_is_seen(
    hostile: HostileServer, hostile_api: Api, signal: Signal, behaviour: Behaviour
) -> None:
    def misbehave(exchange: Exchange) -> None:
        hostile.label(layout="second")
        behaviour(exchange)

    hostile.label(layout="first")
    hostile.watches += [misbehave]
    with watch_node_meta(hostile_api, "gpu-1", signal, QUICK) as watch:
        see(watch, signal, "second")
        hostile.label(layout="third")
        see(watch, signal, "third")


def test_expired_versions_are_read_anew_and_not_asked_for_again(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    def relabel(exchange: Exchange) -> bool:
        hostile.label(layout="new")
        return False

    hostile.watches += [error_event_410, answer_410, relabel]
    with watch_node_meta(hostile_api, "gpu-1", signal, STEADY) as watch:
        see(watch, signal, "new")
    kinds = ["watch" if "watch=true" in path else "list" for _, path in hostile.requests]
    assert kinds == ["list", "watch", "list", "watch", "list", "watch"]


def test_a_server_that_was_restored_from_a_backup_is_read_anew(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    """Its versions begin again below ours, and it keeps to itself what has happened up to them."""

    def restored(exchange: Exchange) -> None:
        hostile.version = 40
        hostile.label(layout="second")
        exchange.begin_stream()
        exchange.event("BOOKMARK", {"metadata": {"resourceVersion": "41"}})
        exchange.chunk(b"")

    hostile.label(layout="first")
    hostile.watches += [restored]
    with watch_node_meta(hostile_api, "gpu-1", signal, QUICK) as watch:
        see(watch, signal, "second")
        hostile.label(layout="third")
        see(watch, signal, "third")


def test_only_metadata_of_our_own_node_is_asked_for(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    accepted: list[str] = []

    def note(exchange: Exchange) -> bool:
        accepted.append(exchange.headers["Accept"])
        assert exchange.query["fieldSelector"] == "metadata.name=gpu-1"
        return False

    hostile.always = note
    hostile.label(layout="first")
    with watch_node_meta(hostile_api, "gpu-1", signal, QUICK) as watch:
        see(watch, signal, "first")
        hostile.label(layout="second")
        see(watch, signal, "second")
    assert accepted[0] == "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
    assert set(accepted[1:]) == {"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"}


def test_a_server_that_never_ends_a_stream_is_left_in_time(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    """Bookmarks keep coming, but changes do not: only a new stream brings them."""
    left = threading.Event()

    def bookmarks_only(exchange: Exchange) -> None:
        hostile.label(layout="second")
        exchange.begin_stream()
        try:
            while True:
                exchange.event("BOOKMARK", {"metadata": {"resourceVersion": "100"}})
                time.sleep(0.1)
        except OSError:
            left.set()

    hostile.watches += [bookmarks_only]
    with watch_node_meta(hostile_api, "gpu-1", signal, QUICK) as watch:
        see(watch, signal, "second")
        assert left.wait(SOON_S)


def test_the_state_is_read_as_a_whole_from_time_to_time(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    """A stream that loses a change, and says nothing, is healed by the next list."""

    def lose_changes(exchange: Exchange) -> None:
        hostile.label(layout="second")
        exchange.begin_stream()
        exchange.event("BOOKMARK", {"metadata": {"resourceVersion": "999"}})
        exchange.chunk(b"")

    hostile.watches += [lose_changes]
    options = WatchOptions(stream_s=1, silence_s=0.5, relist_s=0.5, shortest_backoff_s=0.5)
    with watch_node_meta(hostile_api, "gpu-1", signal, options) as watch:
        see(watch, signal, "second")


def test_an_object_that_is_known_is_not_read_first(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    hostile.label(layout="first")
    known = Node.from_json(hostile.node())
    hostile.label(layout="second")
    with watch_node(hostile_api, "gpu-1", signal, QUICK, known=known) as watch:
        assert watch.synced
        signal.wait_for(
            lambda: watch.sole is not None and watch.sole.meta.labels["layout"] == "second",
            Deadline.after(SOON_S),
            "not seen",
            reason=Reason.API_ERROR,
        )
    assert "watch=true" in hostile.requests[0][1]


@pytest.mark.parametrize("also", ["watch only", "list too"])
def test_what_must_not_be_watched_is_read_again_and_again(
    hostile: HostileServer, hostile_api: Api, signal: Signal, also: str
) -> None:
    """Where the list is forbidden as well, the object is read by itself, which is another verb."""

    def forbid(exchange: Exchange) -> bool:
        watching = exchange.query.get("watch") == "true"
        alone = exchange.path == "/api/v1/nodes/gpu-1"
        if alone and hostile.exists:
            exchange.answer(200, hostile.node())
        elif alone:
            exchange.refuse(404, "NotFound", "no such node")
        elif not granted.is_set() and (watching or also == "list too"):
            exchange.refuse(403, "Forbidden", "nodes is forbidden")
        else:
            return False
        return True

    granted = threading.Event()
    hostile.always = forbid
    hostile.label(layout="first")
    options = WatchOptions(stream_s=1, relist_s=0.5, poll_s=0.05, shortest_backoff_s=5)
    with log() as lines, watch_node_meta(hostile_api, "gpu-1", signal, options) as watch:
        watch.wait_synced(Deadline.after(SOON_S))
        for layout in ("second", "third"):
            hostile.label(layout=layout)
            see(watch, signal, layout)
        hostile.exists = False
        see(watch, signal, None)
        assert watch.problem is None
        granted.set()
        soon = len(hostile.requests)
        signal.wait(
            lambda: any("watch=true" in path for _, path in hostile.requests[soon:]),
            Deadline.after(SOON_S),
            every=0.05,
        )
        hostile.exists = True
        hostile.label(layout="fourth")
        see(watch, signal, "fourth")
    assert [line for line in lines if "must not be watched" in line] == lines[:1]


def test_a_server_in_trouble_is_asked_less_and_less_often_and_not_in_step(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    def refuse(exchange: Exchange) -> bool:
        at.append(time.monotonic())
        exchange.refuse(503, "ServiceUnavailable", "down")
        return True

    at: list[float] = []
    hostile.always = refuse
    options = WatchOptions(shortest_backoff_s=0.05, longest_backoff_s=0.4)
    with watch_node_meta(hostile_api, "gpu-1", signal, options):
        # Were the pauses to grow for ever, so many would take longer.
        assert signal.wait(lambda: len(at) > 11, Deadline.after(SOON_S), every=0.05)
    pauses = [after - before for before, after in pairwise(at)]
    for pause, longest in zip(pauses, (0.05, 0.1, 0.2, *[0.4] * 8), strict=False):
        assert pause >= longest / 2
    assert len({round(pause, 3) for pause in pauses[3:]}) > 1


def test_a_node_that_goes_and_comes_is_followed(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    seen = threading.Event()

    def delete(exchange: Exchange) -> None:
        assert seen.wait(SOON_S)
        hostile.exists = False
        exchange.begin_stream()
        exchange.event("DELETED", hostile.node())
        exchange.hang_up()

    hostile.label(layout="first")
    hostile.watches += [delete]
    with log() as lines, watch_node_meta(hostile_api, "gpu-1", signal, STEADY) as watch:
        see(watch, signal, "first")
        seen.set()
        see(watch, signal, None)
        hostile.exists = True
        hostile.label(layout="again")
        see(watch, signal, "again")
    assert lines == ["There is no Node gpu-1; watching for it", "Node gpu-1 is there now"]


def test_a_node_that_does_not_exist_is_waited_for_and_reported_once(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    hostile.exists = False
    options = WatchOptions(stream_s=1, relist_s=0, shortest_backoff_s=0.05)
    with log() as lines, watch_node_meta(hostile_api, "gpu-1", signal, options) as watch:
        watch.wait_synced(Deadline.after(SOON_S))
        assert watch.sole is None
        signal.wait(lambda: len(hostile.requests) >= 3, Deadline.after(SOON_S), every=0.05)
        hostile.exists = True
        hostile.label(layout="first")
        see(watch, signal, "first")
    assert lines == ["There is no Node gpu-1; watching for it", "Node gpu-1 is there now"]


def test_a_server_that_is_down_is_waited_for_and_is_a_warning_only_if_that_lasts(
    hostile: HostileServer, tmp_path: Path, signal: Signal
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url, hostile.url = hostile.url, f"http://127.0.0.1:{port}"
    kubeconfig = hostile.write_kubeconfig(tmp_path / "kubeconfig")
    options = WatchOptions(shortest_backoff_s=0.05, longest_backoff_s=0.1, passing_s=0.2)
    with (
        log(levels=True) as lines,
        watch_node_meta(Api.connect(kubeconfig), "gpu-1", signal, options) as watch,
    ):
        signal.wait(lambda: len(lines) > 1, Deadline.after(SOON_S), every=0.05)
        with pytest.raises(WaitTimeoutError, match="Connection refused"):
            watch.wait_synced(Deadline.after(0))
        assert watch.problem == f"The API server http://127.0.0.1:{port} does not answer: Connection refused."
        with forwarding(port, int(url.rsplit(":", 1)[1])):
            watch.wait_synced(Deadline.after(SOON_S))
            signal.wait_for(
                lambda: watch.problem is None, Deadline.after(SOON_S), "still down", reason=Reason.API_ERROR
            )
    first, lasting, over = lines
    assert first.startswith("INFO Node gpu-1 cannot be followed, trying again: The API server")
    assert lasting == first.replace("INFO", "WARNING")
    assert over == "INFO Node gpu-1 is followed again"


def test_stop_ends_the_thread_at_once_while_it_reads(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    def label(exchange: Exchange) -> bool:
        hostile.label(layout="read")
        return False

    hostile.watches += [label]
    watch = watch_node_meta(hostile_api, "gpu-1", signal, WatchOptions(stream_s=3600))
    watch.start()
    see(watch, signal, "read")
    began = time.monotonic()
    watch.stop()
    watch.join(SOON_S)
    assert not watch.alive
    assert time.monotonic() - began < SOON_S


def test_readers_learn_that_a_watch_has_died(
    hostile: HostileServer, hostile_api: Api, signal: Signal
) -> None:
    def fail(node: Node) -> None:
        raise RuntimeError("a bug")

    with watch_node(hostile_api, "gpu-1", signal, QUICK, observe=fail) as watch:
        watch.wait_synced(Deadline.after(SOON_S))
        with pytest.raises(MigManagerError, match="has died"):
            _ = watch.sole


@contextmanager
def log(*, levels: bool = False) -> Iterator[list[str]]:
    """The log lines of a block."""
    lines: list[str] = []
    form = "{level} {message}" if levels else "{message}"
    handler = logger.add(lambda line: lines.append(line.rstrip("\n")), level="INFO", format=form)
    try:
        yield lines
    finally:
        logger.remove(handler)


@contextmanager
def forwarding(port: int, target: int) -> Iterator[None]:
    """Passes connections on one port to another."""

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with source, sink, suppress(OSError):
            while received := source.recv(4096):
                sink.sendall(received)

    def accept() -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", target))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    with socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
