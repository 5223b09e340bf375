"""`kubectl mig set`: ask nodes for a layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from mig_manager.cli.errors import ExitCode, InputError
from mig_manager.cli.kubectl.options import Context, KubeconfigFile, Selector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mig_manager.cli.kubectl.asking import Ask
    from mig_manager.cluster.client import Api

_EXAMPLES = """\b
Examples:
  kubectl mig set gpu-1 all-1g.10gb
  kubectl mig set gpu-1 gpu-2 all-balanced --wait --timeout 15m
  kubectl mig set -l pool=inference all-1g.10gb --dry-run

\b
With --wait, exits with 0 where all of them have the layout, and with 1 where
one has failed, or has not ended in time. Ctrl-C ends the waiting alone.
"""
_DEFAULT_TIMEOUT = "1h"
_PATIENCE_S = 30.0
"""Seconds that a change of a Node is tried again."""


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("set", epilog=_EXAMPLES, short_help="Ask nodes for a layout, and wait until they have it.")(
        set_layout
    )


def set_layout(
    words: Annotated[
        list[str], typer.Argument(metavar="[NODE]... LAYOUT", help="Names of Nodes, then that of the layout.")
    ],
    selector: Selector = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Follow the nodes until each has the layout, or has failed.")
    ] = False,
    timeout: Annotated[
        str | None,
        typer.Option(
            "--timeout",
            metavar="TIME",
            help=f"With --wait: how long, such as 90s or 15m; 0 for ever; {_DEFAULT_TIMEOUT} by default.",
        ),
    ] = None,
    again: Annotated[
        bool,
        typer.Option(
            "--again", help="Try again also what mends nothing by itself: RollbackFailed, a reboot."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check, and say what would be done.")] = False,
    kubeconfig: KubeconfigFile = None,
    context: Context = None,
) -> None:
    """Set the label nvidia.com/mig.config on nodes, once it is known that they can take the layout.

    A node that has it already is left alone. One that has failed with it, or holds an edit of it back, is told to
    try again.
    """
    from mig_manager.cli.kubectl.asking import ask_for, not_lightly, problems, strangers
    from mig_manager.cli.kubectl.cluster import connect, find_nodes, nobody
    from mig_manager.cli.kubectl.durations import parse_duration
    from mig_manager.cli.kubectl.meaning import known_meanings
    from mig_manager.cli.output import complain, write

    *names, layout = words
    if bool(names) == bool(selector):
        raise InputError(
            f"{layout!r} is taken for the layout: name Nodes before it, or select them with -l (and not both)"
        )
    if timeout is not None and not wait:
        raise typer.BadParameter("goes with --wait", param_hint="--timeout")
    seconds = parse_duration(timeout or _DEFAULT_TIMEOUT, "--timeout")
    with connect(kubeconfig, context) as api:
        nodes = find_nodes(api, names, selector)
        if not nodes:
            raise InputError(nobody(selector))
        meanings = known_meanings(api, nodes)
        if found := problems(layout, nodes, meanings):
            raise InputError("\n".join(found))
        if (unchecked := strangers(nodes)) is not None:
            complain(f"warning: {unchecked}")
        hashes = {name: meaning.hash(layout) for name, meaning in meanings.items()}
        asks = [ask_for(layout, each, hashes.get(each.name)) for each in nodes]
        if not again and (found := not_lightly(asks)):
            raise InputError("\n".join((*found, "Add --again to have it tried again all the same.")))
        if dry_run:
            write("".join(f"{each.in_words(dry_run=True)}\n" for each in asks))
            return
        done = _send(api, asks)
        ended = _wait(api, done, seconds) if wait and done else True
    if len(done) < len(asks):
        raise typer.Exit(ExitCode.REFUSED)
    if not ended:
        raise typer.Exit(ExitCode.DIFFERS)


def _send(api: Api, asks: Sequence[Ask]) -> list[Ask]:
    """Write on the Nodes what has to be; says what was done, and gives those where that was possible."""
    from uuid import uuid4

    from mig_manager.cli.errors import told
    from mig_manager.cli.output import complain, write
    from mig_manager.cluster.node import NodeClient
    from mig_manager.cluster.refusal import ApiError
    from mig_manager.cluster.wait import Deadline

    done = []
    for ask in asks:
        if change := ask.change(uuid4().hex):
            client = NodeClient(api, ask.node.name)
            try:
                client.patch(change, deadline=Deadline.after(_PATIENCE_S), uid=ask.node.node.meta.uid)
            except ApiError as error:
                complain(told(error))
                continue
        write(f"{ask.in_words()}\n")
        done.append(ask)
    return done


def _wait(api: Api, asks: Sequence[Ask], seconds: float) -> bool:
    """Whether all got the layout in time; says how each has ended."""
    from mig_manager.cli.kubectl.following import Following
    from mig_manager.cli.kubectl.waiting import wait_for
    from mig_manager.cli.kubectl.waitview import Bars, Lines, in_words
    from mig_manager.cli.output import Screen, complain, write
    from mig_manager.cluster.wait import Deadline

    names = [ask.node.name for ask in asks]
    deadline = Deadline.after(seconds) if seconds else Deadline.never()
    console = Screen().moving
    try:
        with (
            Following(api, names) as following,
            Lines() if console is None else Bars(console, names) as view,
        ):
            verdicts, standings = wait_for(asks, following, deadline, view)
    except KeyboardInterrupt:
        complain(
            f"Waiting has ended; the change goes on. To follow it: kubectl mig status -w {' '.join(names)}"
        )
        raise
    for name, verdict in verdicts.items():
        if verdict.done:
            write(f"{name}: {verdict.words}\n")
        else:
            complain(f"error: {name}: {verdict.words}")
    late = [name for name in names if name not in verdicts]
    if late:
        complain(f"error: not ended within {seconds:g} s; the change goes on:")
        for name in late:
            complain(f"{name}: {in_words(standings[name])}")
    return not late and all(each.done for each in verdicts.values())
