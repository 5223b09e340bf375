"""Nodes shown as they change, until Ctrl-C."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console, Group
from rich.text import Text

from mig_manager.cli.kubectl.following import Following
from mig_manager.cli.kubectl.options import Format
from mig_manager.cli.kubectl.standing import Standing
from mig_manager.cli.kubectl.statustable import StatusTable
from mig_manager.cli.output import Screen, complain, write
from mig_manager.cluster.wait import Deadline

if TYPE_CHECKING:
    from collections.abc import Sequence


def follow_in_place(following: Following, screen: Screen, console: Console, *, wide: bool) -> NoReturn:
    """A table that changes in place. Where it is higher than the terminal, nodes with something to see come first."""
    from rich.live import Live

    def picture() -> Group:
        shown: Sequence[Standing] = following.now()
        table = StatusTable(wide=wide, width=console.width)
        lines = table.lines(shown)
        if len(lines) >= console.height:
            lines = table.lines(sorted(shown, key=lambda each: each.as_asked))
        if following.problem is not None:
            lines.append(Text(f"This may be old: {following.problem}", "yellow"))
        for line in lines:
            line.no_wrap = True
        return Group(*lines)

    with Live(picture(), console=console, auto_refresh=False) as live:

        def look() -> None:
            live.update(picture(), refresh=True)

        _for_ever(following, look)


def follow_in_lines(following: Following, screen: Screen, *, wide: bool) -> NoReturn:
    """The table, then a row for each node that has changed, as `kubectl get -w` has it."""
    table = StatusTable(wide=wide, width=None)
    first = following.now()
    screen.lines(table.lines(first))
    _for_each_change(following, table.key, lambda each: screen.lines([table.row(each)]), first)


def follow_documents(following: Following, output: Format) -> NoReturn:
    """A document for each node, and another whenever it changes: JSON and names one a line, YAML after `---`."""
    import json

    import yaml

    def show(standing: Standing) -> None:
        if output is Format.NAME:
            write(f"node/{standing.name}\n")
        elif output is Format.JSON:
            write(json.dumps(standing.document()) + "\n")
        else:
            write("---\n" + yaml.safe_dump(standing.document(), sort_keys=False, allow_unicode=True))

    _for_each_change(following, lambda each: repr(each.document()), show)


def _for_each_change(
    following: Following,
    key: Callable[[Standing], object],
    show: Callable[[Standing], None],
    shown: Sequence[Standing] = (),
) -> NoReturn:
    keys = {each.name: key(each) for each in shown}
    problem: str | None = None

    def look() -> None:
        nonlocal problem
        for each in following.now():
            if keys.get(each.name) != (new := key(each)):
                keys[each.name] = new
                show(each)
        if following.problem != problem:
            problem = following.problem
            if problem is not None:
                complain(f"What is shown may be old: {problem}")

    _for_ever(following, look)


def _for_ever(following: Following, look: Callable[[], None]) -> NoReturn:
    following.wait(look, Deadline.never())
    raise AssertionError("a wait without end has ended")
