"""The daemon's process: settings, clients, watches, the loop, and an orderly end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

from loguru import logger

from mig_manager import __version__
from mig_manager.cluster.client import Api
from mig_manager.cluster.events import EventRecorder
from mig_manager.cluster.node import NodeClient
from mig_manager.cluster.objects import NodeMeta
from mig_manager.cluster.operandfile import read_operands
from mig_manager.cluster.operands import Operand, gpu_operator_operands
from mig_manager.cluster.wait import Deadline, Signal
from mig_manager.cluster.watch import WatchOptions, watch_config_map, watch_node_meta
from mig_manager.daemon.agent import Agent
from mig_manager.daemon.books import BookSource, ConfigMapSource, FileSource
from mig_manager.daemon.counts import Counts
from mig_manager.daemon.driver import new_worker
from mig_manager.daemon.http import PageServer
from mig_manager.daemon.log import set_up_logging
from mig_manager.daemon.metrics import Metrics
from mig_manager.daemon.pages import Obstacle, Pages, asked, established
from mig_manager.daemon.permissions import POLL_S, Permissions
from mig_manager.daemon.progress import Progress
from mig_manager.daemon.pulse import Pulse, longest_silence
from mig_manager.daemon.services import start_left_behind
from mig_manager.daemon.settings import Settings, SettingsError, load_settings
from mig_manager.daemon.site import Site
from mig_manager.daemon.stale import StaleResources
from mig_manager.daemon.usage import heed, misspelt
from mig_manager.daemon.wish import Wishes
from mig_manager.errors import MigManagerError
from mig_manager.gpu.control import CallRecord

_ENDING = (signal.SIGTERM, signal.SIGINT)
"""Signals that ask to end: blocked in every thread, and waited for in one."""
_FIRST_LOOK = 10.0
"""Seconds that the start waits for the layouts before it goes on without them."""


def main() -> None:
    """Run the daemon until SIGTERM or SIGINT.

    Exit code 2: the arguments, settings or credentials do not fit. 1: it could not go on, or not end in order in
    time.
    """
    heed(sys.argv[1:])
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    for number in _ENDING:
        signal.signal(number, _to_the_thread_that_waits)
    try:
        settings = load_settings()
        set_up_logging(settings)
        operands = _operands(settings)
        counts = Counts()
        api = Api.connect(settings.kubeconfig, refused=counts.api_refused)
    except (SettingsError, MigManagerError) as error:
        sys.stderr.write(f"mig-manager: {error}\n")
        sys.exit(2)
    logger.info("mig-manager {} on node {}, API server {}", __version__, settings.node_name, api.server)
    for sentence in misspelt(os.environ):
        logger.warning("{}", sentence)
    serve(settings, api, operands, counts)


def serve(settings: Settings, api: Api, operands: tuple[Operand, ...], counts: Counts) -> None:
    """Watch over the Node until a signal asks to end."""
    pulse = Pulse()
    waker = Signal(looking=pulse.beat)
    progress = Progress(counts, pulse.beat)

    def said(words: str) -> None:
        logger.warning("NVML worker: {}", words)

    def called(calls: Sequence[CallRecord]) -> None:
        pulse.beat()
        counts.nvml_called(calls)

    with ExitStack() as stack:
        stack.enter_context(api)
        watching = WatchOptions(
            stream_s=settings.watch_seconds,
            silence_s=max(1.0, settings.watch_seconds / 9),
            restarted=counts.watch_restarted,
        )
        idle = replace(watching, poll_s=POLL_S)
        node = stack.enter_context(watch_node_meta(api, settings.node_name, waker, idle))
        events = EventRecorder(api, settings.node_name)
        stack.callback(events.close)
        permissions = Permissions(api, settings, events)
        permissions.start()
        obstacles = [established(node), asked(permissions)]
        if settings.listen_on is not None:
            metrics = Metrics(lambda: node.sole, counts, progress)
            pages = Pages(
                lambda: node.sole,
                progress,
                metrics,
                pulse,
                waker.notify,
                longest_silence(settings),
                obstacles,
            )
            PageServer(pages.by_path(), *settings.listen_on).start()
        user = _user_layouts(settings, api, waker, idle, stack, obstacles)
        site = Site(
            settings=settings,
            api=api,
            node=NodeClient(api, settings.node_name),
            events=events,
            signal=waker,
            watching=watching,
            operands=operands,
            permissions=permissions,
            counts=counts,
            progress=progress,
            wishes=Wishes(user, _default_layouts(settings, waker, stack)),
            new_worker=lambda: new_worker(settings, said, called),
        )
        if settings.remove_stale_resources:
            stack.enter_context(StaleResources(api, settings.node_name, watching))
        agent = Agent(site, lambda: node.sole)
        threading.Thread(
            target=_end_on_signal, args=(agent, settings.stop_timeout), name="signals", daemon=True
        ).start()

        def first_look() -> NodeMeta | None:
            waker.wait(lambda: node.synced or node.problem, Deadline.after(_FIRST_LOOK))
            return node.sole

        start_left_behind(settings, first_look)
        try:
            agent.serve()
        except MigManagerError as error:
            logger.critical("{}", error.message)
            sys.exit(1)
    logger.info("ended")


def _operands(settings: Settings) -> tuple[Operand, ...]:
    """The GPU clients of the settings. Raises MigManagerError: their list cannot be used."""
    namespace = settings.operand_namespace or None
    if settings.operands_file is None:
        return gpu_operator_operands(namespace)
    return read_operands(settings.operands_file, namespace)


def _user_layouts(
    settings: Settings,
    api: Api,
    waker: Signal,
    watching: WatchOptions,
    stack: ExitStack,
    obstacles: list[Obstacle],
) -> BookSource:
    if settings.config_file is not None:
        return _followed(FileSource(settings.config_file, waker.notify), stack)
    namespace, name = settings.layouts_namespace, settings.config_map_name
    watch = stack.enter_context(watch_config_map(api, namespace, name, waker, watching))
    obstacles.append(established(watch))
    waker.wait(lambda: watch.synced or watch.problem, Deadline.after(_FIRST_LOOK))
    return ConfigMapSource(watch, settings.config_map_key, f"{namespace}/{name}")


def _default_layouts(settings: Settings, waker: Signal, stack: ExitStack) -> BookSource | None:
    if settings.default_config_file is None:
        return None
    return _followed(FileSource(settings.default_config_file, waker.notify), stack)


def _followed(source: FileSource, stack: ExitStack) -> FileSource:
    source.start()
    stack.callback(source.stop)
    return source


def _to_the_thread_that_waits(number: int, frame: object) -> None:
    """Send on what came in the moment in which a command is started, by a thread that blocks nothing."""
    os.kill(os.getpid(), number)


def _end_on_signal(agent: Agent, timeout_s: float) -> None:
    number = signal.sigwait(_ENDING)
    logger.info("{}: ending", signal.Signals(number).name)
    agent.stop()
    time.sleep(timeout_s)
    # Something does not come back: a reset, an NVML call, the API server. The journal on the Node has everything.
    logger.warning("not ended within {:g} s: leaving at once; the next start goes on", timeout_s)
    os._exit(1)
