"""Whose turn it is, for any set of Leases: what all nodes conclude from the same ones fits together."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mig_manager.cluster.leases import Lease, Role, place_name, slot_name
from mig_manager.cluster.queue import Scene


def lease(name: str, role: Role, node: str, created: int = 0, since: float = 0.0) -> Lease:
    return Lease(name, f"uid of {name}", "1", role, node, f"2026-01-01T00:00:{created:02}Z", 60.0, since)


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Lease], list[str], list[str]]:
    """Leases, the nodes that wait with a place, and the names of the slots."""
    limit = draw(st.integers(1, 6))
    numbers = draw(st.sets(st.integers(0, 8)))
    used = [lease(slot_name("", number), Role.SLOT, f"busy-{number}") for number in numbers]
    waiting = [f"node-{number}" for number in draw(st.sets(st.integers(0, 9)))]
    places = [lease(place_name(node), Role.PLACE, node, draw(st.integers(0, 3))) for node in waiting]
    return used + places, waiting, [slot_name("", number) for number in range(limit)]


@settings(max_examples=300)
@given(pools())
def test_waiting_nodes_choose_different_slots_and_never_more_than_the_limit_allows(
    pool: tuple[list[Lease], list[str], list[str]],
) -> None:
    leases, waiting, names = pool
    used = {each.name for each in leases if each.role == Role.SLOT}
    choices = {node: Scene.of(leases, node, names).choice()[:1] for node in waiting}
    chosen = [choice[0] for choice in choices.values() if choice]
    assert len(chosen) == len(set(chosen))
    assert not used & set(chosen)
    assert set(chosen) <= set(names)
    room = max(0, len(names) - len(used))
    assert len(chosen) == min(room, len(waiting)), "as many as can, and no more"
    created = {each.node: (each.created, each.name) for each in leases}
    oldest = sorted(waiting, key=lambda node: created[node])
    assert {node for node, choice in choices.items() if choice} == set(oldest[: len(chosen)])


@settings(max_examples=200)
@given(pools(), st.data())
def test_passing_over_the_dead_leaves_the_living_in_their_order(
    pool: tuple[list[Lease], list[str], list[str]], data: st.DataObject
) -> None:
    leases, waiting, names = pool
    dead = data.draw(st.sets(st.sampled_from(waiting))) if waiting else set()
    gone = [each for each in leases if each.role == Role.PLACE and each.node in dead]
    left = [each for each in leases if each not in gone]
    for node in set(waiting) - dead:
        assert Scene.of(leases, node, names).choice(gone) == Scene.of(left, node, names).choice()


def test_a_newcomer_takes_what_those_who_wait_leave_over() -> None:
    names = [slot_name("", number) for number in range(3)]
    places = [lease(place_name(f"n-{number}"), Role.PLACE, f"n-{number}", number) for number in range(2)]
    assert Scene.of(places, "new", names).choice() == (names[2],)
    assert Scene.of(places, "new", names[:2]).choice() == ()
    assert Scene.of(places, "new", names[:2]).stalled


def test_the_place_of_a_node_that_has_its_slot_already_keeps_nobody_waiting() -> None:
    names = [slot_name("", number) for number in range(2)]
    leases = [lease(names[0], Role.SLOT, "a"), lease(place_name("a"), Role.PLACE, "a")]
    assert Scene.of(leases, "b", names).choice() == (names[1],)


def test_only_those_at_the_head_of_the_queue_look_after_dead_holders() -> None:
    used = [lease(slot_name("", 0), Role.SLOT, "dead"), lease(slot_name("", 1), Role.SLOT, "alive", since=90)]
    places = [lease(place_name(f"n-{number}"), Role.PLACE, f"n-{number}", number) for number in range(2)]
    names = [each.name for each in used]
    first, second = (Scene.of(used + places, f"n-{number}", names) for number in range(2))
    assert first.overdue(59, 30) == (), "the holder's own duration counts where it is longer"
    assert first.overdue(100, 30) == (used[0],)
    assert second.overdue(100, 30) == ()


@pytest.mark.parametrize(
    ("used", "ahead", "words"),
    [
        (["gpu-7", "gpu-3"], 0, "2 of 2 in use by gpu-3, gpu-7"),
        (["gpu-3"], 1, "1 of 2 in use by gpu-3; 1 node is ahead"),
        ([], 4, "0 of 2 in use; 4 nodes are ahead"),
        (
            [f"gpu-{number}" for number in range(13)],
            0,
            "13 of 2 in use by gpu-0, gpu-1, gpu-10, gpu-11, gpu-12, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, 3 more",
        ),
    ],
)
def test_how_it_is_said(used: list[str], ahead: int, words: str) -> None:
    slots = [lease(slot_name("", number), Role.SLOT, node) for number, node in enumerate(used)]
    places = [lease(place_name(f"n-{number}"), Role.PLACE, f"n-{number}") for number in range(ahead)]
    assert str(Scene.of(slots + places, "me", [slot_name("", number) for number in range(2)])) == words


@pytest.mark.parametrize("text", ["gpu-1", "a.b-c", "A100_80GB", "x" * 250, "a..b", "0"])
def test_names_are_fit_for_objects_and_tell_everybody_apart(text: str) -> None:
    for name in (slot_name(text, 3), place_name(text)):
        assert len(name) <= 253
        assert name == name.lower()
        assert "_" not in name
        assert ".." not in name
    assert len({slot_name(each, 0) for each in (text, text.lower() + "-", text + "z")}) == 3
