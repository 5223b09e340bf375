"""The systemd units of the host that use the GPUs: stopped around a change, and only those started again.

The journal names each of them before it is stopped, on the Node and in a file on the host.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from loguru import logger

from mig_manager.cluster.objects import NodeMeta
from mig_manager.daemon.hardware import Hardware
from mig_manager.daemon.interrupts import StoppingError
from mig_manager.daemon.journal import Journal
from mig_manager.daemon.journalfile import JournalFile
from mig_manager.daemon.report import Report
from mig_manager.daemon.settings import Settings
from mig_manager.daemon.status import Phase
from mig_manager.errors import MigManagerError, Reason
from mig_manager.host.clients import read_services
from mig_manager.host.systemd import InterruptedWaitError, Systemd, connected, find_bus
from mig_manager.host.units import stop_order

_RETRIES_S = 10.0
"""How long the start of a unit that fails is tried again: the GPU clients of the cluster wait for it."""
_FIRST_RETRY_S = 0.5
_HURRIED_S = 2.0
"""How long each unit may take to start once time is short."""


class HostServices:
    """The units during one run."""

    def __init__(self, settings: Settings, report: Report) -> None:
        """No connection is made before there is something to look at, to stop or to start."""
        self._settings = settings
        self._report = report
        self._file = JournalFile(settings.journal_copy)
        self._hurry = threading.Event()
        self._listed: tuple[str, ...] = ()
        self.stopping: frozenset[str] = frozenset()
        """Names of the units that a change would stop, as `prove` found them."""

    def hurry(self) -> None:
        """The daemon has been asked to end: wait for no unit any more. Safe in any thread."""
        self._hurry.set()

    def prove(self) -> None:
        """Find out beforehand whether they could be stopped and started again; touches nothing.

        Raises:
            MigManagerError: HostServiceError; the list cannot be used, systemd cannot be asked, or a unit would not
                come back.
        """
        self._listed = _listed(self._settings)
        if self._listed and (address := _bus(self._settings)):
            with connected(address) as systemd:
                self.stopping = frozenset(unit.name for unit in stop_order(systemd.unit, self._listed))

    def pause(self) -> None:
        """Stop those that are listed and run, and whoever depends on one. The journal names them before.

        Raises:
            MigManagerError: HostServiceError, naming the unit.
            StoppingError: the daemon has been asked to end.
        """
        address = _bus(self._settings) if self._listed else None
        if address is None:
            return
        with connected(address) as systemd:
            order = stop_order(systemd.unit, self._listed)
            if not order:
                return
            self._note([unit.name for unit in order if unit.wanted])
            for unit in order:
                if unit.stoppable:
                    self._stop(systemd, unit.name)
            # One of them may have been started again meanwhile, such as by its socket.
            for unit in order:
                if not systemd.unit(unit.name).down:
                    self._stop(systemd, unit.name)

    def _note(self, names: Sequence[str]) -> None:
        """Write down, on the Node and on the host, which units are ours to start again."""

        def with_names(journal: Journal) -> Journal:
            return replace(journal, services=tuple(dict.fromkeys((*journal.services, *names))))

        self._report.change(Phase.STOPPING_HOST_SERVICES, lambda node: self._report.amend(node, with_names))
        if self._report.journal is not None and self._report.journal.services:
            self._file.write(self._report.journal)

    def _stop(self, systemd: Systemd, name: str) -> None:
        logger.info("stopping {} on the host", name)
        try:
            systemd.stop(name, self._settings.host_service_timeout, self._hurry)
        except InterruptedWaitError:
            raise StoppingError from None

    @contextmanager
    def back(self, gpus: Hardware) -> Iterator[None]:
        """However the block ends, those run again that were stopped, unless the next start goes on from here."""
        try:
            yield
        except StoppingError:
            if not gpus.changed:
                self._resume_or_log()
            raise
        except MigManagerError as failure:
            # Until the GPUs can be read, nobody knows what an earlier process has left on them.
            problem = self._resume_or_log() if gpus.seen else None
            if problem is None or problem.message in failure.message:
                raise
            raise MigManagerError(failure.reason, f"{failure.message} {problem.message}") from failure
        problem = self._resume_or_log()
        if problem is not None:
            self._report.failed_in = Phase.STARTING_HOST_SERVICES
            raise problem

    def _resume_or_log(self) -> MigManagerError | None:
        try:
            self._resume()
        except MigManagerError as problem:
            logger.error("{}", problem.message)
            return problem
        return None

    def _resume(self) -> None:
        """Start those that this run or the one before it has stopped, in reverse order; all others stay.

        Raises:
            MigManagerError: HostServiceError; some could not be started. They stay in the journal.
        """
        journal = self._report.journal
        if journal is None or not journal.services:
            return
        problems = start_again(self._settings, journal.services, self._hurry)
        left = tuple(name for name in journal.services if name in problems)
        self._report.journal = replace(journal, services=left)
        if left:
            self._file.write(self._report.journal)
            words = " ".join(dict.fromkeys(problems.values()))
            raise MigManagerError(
                Reason.HOST_SERVICE_ERROR, f"Host services could not be started again. {words}"
            )
        self._file.remove()


def start_again(settings: Settings, names: Sequence[str], hurry: threading.Event) -> Mapping[str, str]:
    """Start units in the reverse of this order, those that run already left alone; one that fails, a few times.

    Gives what is wrong with each that does not run. `hurry`: set when time is short.
    """
    now = time.monotonic()
    end, last_try = now + settings.host_service_timeout, now + min(_RETRIES_S, settings.host_service_timeout)
    left = list(reversed(names))
    delay = _FIRST_RETRY_S
    while True:
        problems = _started(settings, left, end, hurry)
        left = [name for name in left if name in problems]
        if not left or time.monotonic() + delay > last_try or hurry.wait(delay):
            return problems
        delay *= 2


def start_left_behind(settings: Settings, node: Callable[[], NodeMeta | None]) -> None:
    """Start what an earlier process has stopped and the Node does not tell of, by the copy of the journal.

    Args:
        node: asked only if there is a copy; None: there is no Node, or it cannot be read.
    """
    file = JournalFile(settings.journal_copy)
    copy = file.read()
    if copy is None or not copy.services:
        return
    meta = node()
    known = Journal.from_annotations(meta.annotations) if meta is not None else None
    if known is not None and set(copy.services) <= set(known.services):
        return  # The run that goes on from there starts them.
    logger.warning("the Node does not tell of host services that were stopped: starting {}", copy.services)
    problems = start_again(settings, copy.services, threading.Event())
    if problems:
        logger.error("not every host service could be started again: {}", " ".join(problems.values()))
        file.write(replace(copy, services=tuple(name for name in copy.services if name in problems)))
    else:
        file.remove()


def _listed(settings: Settings) -> tuple[str, ...]:
    """The units to stop. Raises MigManagerError where the list cannot be used."""
    if not settings.with_shutdown_host_gpu_clients or settings.gpu_clients_file is None:
        return ()
    return read_services(settings.gpu_clients_file)


def _bus(settings: Settings) -> str | None:
    """The address of the host's system bus; None, said in the log, where there is none."""
    address = settings.dbus_address or find_bus(settings.host_root_mount)
    if address is None:
        logger.info("no system bus below {}: the host has no services for us", settings.host_root_mount)
    return address


def _started(settings: Settings, names: Sequence[str], end: float, hurry: threading.Event) -> dict[str, str]:
    """One round; what is wrong with each that does not run."""
    address = _bus(settings)
    if address is None:
        return dict.fromkeys(names, f"There is no system bus below {settings.host_root_mount}.")
    try:
        with connected(address) as systemd:
            tried = {name: _start(systemd, name, end, hurry) for name in names}
            # A service counts as started as soon as its process runs, which may have ended since.
            tried |= {name: _failure(systemd, name) for name in names if not tried[name]}
    except MigManagerError as error:
        return dict.fromkeys(names, error.message)
    return {name: problem for name, problem in tried.items() if problem}


def _failure(systemd: Systemd, name: str) -> str:
    """What is wrong with a unit that was started."""
    unit = systemd.unit(name)
    return f"{name} was started, and is {unit.state} now." if unit.active == "failed" else ""


def _start(systemd: Systemd, name: str, end: float, hurry: threading.Event) -> str:
    """Start one, unless it runs; gives what is wrong."""
    try:
        unit = systemd.unit(name)
        if unit.wanted:
            return ""
        logger.info("starting {} on the host", name)
        if unit.active == "failed":
            systemd.forget_failure(name)
        short = hurry.is_set()
        patience = _HURRIED_S if short else max(end - time.monotonic(), _HURRIED_S)
        systemd.start(name, patience, None if short else hurry)
    except InterruptedWaitError:
        return ""  # Its start is under way, and systemd sees to it.
    except MigManagerError as error:
        return error.message
    return ""
