"""`mig-manager release`: leave nodes in order when mig-manager is removed from a cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.errors import InputError
from mig_manager.cli.output import complain, write

if TYPE_CHECKING:
    from mig_manager.cluster.client import Api

_EXAMPLES = """\b
Examples:
  mig-manager release --all --daemonset mig-manager/mig-manager --wait 900
  mig-manager release gpu-1              (no daemon may run there any more)
"""
_LOOK_S = 2.0
"""Seconds between two looks at what is waited for."""
_ENDING_S = 120.0
"""Seconds that the pods of the DaemonSet may take to go; a node that is down does not end its own."""
_SHOWN = 5


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command(
        "release",
        short_help="Take mig-manager off Nodes, when it is removed from a cluster.",
        epilog=_EXAMPLES,
    )(release)


def release(
    nodes: Annotated[list[str] | None, typer.Argument(metavar="[NODE]...", help="Names of Nodes.")] = None,
    everywhere: Annotated[
        bool, typer.Option("--all", help="All Nodes that mig-manager has left anything on.")
    ] = False,
    daemon_set: Annotated[
        str | None,
        typer.Option(
            "--daemonset",
            metavar="NAMESPACE/NAME",
            help="Delete this DaemonSet first, once no run is under way, and wait for the end of its pods.",
        ),
    ] = None,
    wait: Annotated[
        float,
        typer.Option("--wait", min=0, metavar="SECONDS", help="How long runs may take to end by themselves."),
    ] = 0,
    startup_taint: Annotated[
        str,
        typer.Option(
            "--startup-taint", metavar="KEY", help="The start-up taint, as MIG_MANAGER_STARTUP_TAINT."
        ),
    ] = "mig-manager/not-ready",
    leases: Annotated[
        str | None,
        typer.Option(
            "--leases",
            metavar="NAMESPACE",
            help="Where the Leases of fleet slots lie; by default in the namespace of --daemonset, else anywhere.",
        ),
    ] = None,
    kubeconfig: Annotated[
        Path | None,
        typer.Option(
            envvar="KUBECONFIG",
            metavar="FILE",
            help="Credentials file; by default the pod's service account, or ~/.kube/config.",
        ),
    ] = None,
) -> None:
    """Take mig-manager off Nodes: resume GPU clients that it paused, take off its cordon, taint and annotations.

    Its slots in a fleet go, too. The GPUs keep the layout that they have, and the label nvidia.com/mig.config stays.
    """
    from mig_manager.cluster.client import Api

    if everywhere == bool(nodes):
        raise InputError("name the Nodes, or give --all")
    namespace, _, name = (daemon_set or "").partition("/")
    if daemon_set is not None and not (namespace and name and "/" not in name):
        raise InputError(
            f"--daemonset {daemon_set!r}: a namespace and a name are wanted, such as mig-manager/mig-manager"
        )
    with Api.connect(kubeconfig or _usual_credentials()) as api:
        _require(api, nodes or ())
        if wait:
            _wait_for_runs(api, nodes, wait)
        if daemon_set is not None:
            _remove(api, namespace, name)
        _put_back(api, nodes, startup_taint)
        _remove_leases(api, leases or namespace or None, nodes)


def _require(api: Api, names: Sequence[str]) -> None:
    """That there are such Nodes, before a DaemonSet is deleted for them."""
    from mig_manager.daemon.leaving import metadata_of_nodes
    from mig_manager.layouts.findings import hint
    from mig_manager.layouts.suggest import nearest

    there = [each.name for each in metadata_of_nodes(api)] if names else []
    for name in names:
        if name not in there:
            raise InputError(f"there is no Node {name!r}{hint(nearest(name, there))}")


def _usual_credentials() -> Path | None:
    """Those of kubectl, outside of a pod."""
    from mig_manager.cluster.client import SERVICE_ACCOUNT

    usual = Path("~/.kube/config").expanduser()
    return None if SERVICE_ACCOUNT.is_dir() or not usual.is_file() else usual


def _wait_for_runs(api: Api, nodes: Sequence[str] | None, seconds: float) -> None:
    from mig_manager.daemon.leaving import metadata_of_nodes, runs

    said: list[list[str]] = [[]]

    def none_runs() -> bool:
        busy = [
            each.name for each in metadata_of_nodes(api) if runs(each) and (not nodes or each.name in nodes)
        ]
        if busy and busy != said[0]:
            more = f" and {len(busy) - _SHOWN} more" if len(busy) > _SHOWN else ""
            write(f"waiting for the end of runs on {', '.join(busy[:_SHOWN])}{more}\n")
        said[0] = busy
        return not busy

    if not _within(seconds, none_runs):
        complain(f"runs have not ended within {seconds:g} s on {', '.join(said[0])}: going on without them")


def _remove(api: Api, namespace: str, name: str) -> None:
    from mig_manager.daemon.leaving import daemon_set_is_gone, delete_daemon_set

    delete_daemon_set(api, namespace, name)
    if _within(_ENDING_S, lambda: daemon_set_is_gone(api, namespace, name)):
        write(f"DaemonSet {namespace}/{name} and its pods have ended\n")
    else:
        complain(
            f"not all pods of DaemonSet {namespace}/{name} have ended within {_ENDING_S:g} s: going on without them"
        )


def _put_back(api: Api, nodes: Sequence[str] | None, startup_taint: str) -> None:
    from mig_manager.daemon.leaving import put_back, with_anything_of_ours

    for name in nodes or with_anything_of_ours(api, startup_taint):
        told = put_back(api, name, startup_taint)
        if told.done:
            write(f"{name}: {', '.join(told.done)}\n")
        for each in told.remains:
            complain(f"{name}: {each}")


def _remove_leases(api: Api, namespace: str | None, nodes: Sequence[str] | None) -> None:
    from mig_manager.cluster.refusal import ApiError
    from mig_manager.daemon.leaving import remove_leases

    try:
        removed = remove_leases(api, namespace, nodes)
    except ApiError as error:
        complain(f"Leases of fleet slots may be left (label mig-manager/lease): {error.message}")
    else:
        if removed:
            write(f"Leases removed: {', '.join(removed)}\n")


def _within(seconds: float, look: Callable[[], bool]) -> bool:
    """Whether it came about in time. Looks at least once."""
    end = time.monotonic() + seconds
    while not look():
        if time.monotonic() >= end:
            return False
        time.sleep(_LOOK_S)
    return True
