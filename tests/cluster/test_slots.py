"""At most so many nodes of a fleet change at once, whoever dies, and whatever the clocks say."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.cluster.client import Api
from mig_manager.cluster.leases import POOL_LABEL, ROLE_LABEL
from mig_manager.cluster.refusal import ApiError
from mig_manager.cluster.slots import SlotLostError, SlotRules
from mig_manager.cluster.wait import Deadline
from mig_manager.simulation.api.faults import Fault
from mig_manager.simulation.apiserver import ApiServer
from tests.cluster.cluster import Cluster
from tests.cluster.slotusers import PATIENCE_S, QUICK, Fleet, SlotUser

SLOT = "mig-manager-slot-0"


@pytest.fixture
def fleet(api: Api, kubeconfig: Path, cluster: Cluster) -> Iterator[Fleet]:
    made = Fleet(api, kubeconfig, cluster.namespace)
    yield made
    made.close()


def place(node: str) -> str:
    return f"mig-manager-place-{node}"


def test_one_more_than_the_limit_waits_says_for_whom_and_goes_on_when_one_is_done(fleet: Fleet) -> None:
    first, second, third = (fleet.user(name, limit=2) for name in ("a-gpu-3", "a-gpu-7", "a-gpu-9"))
    assert first.take()
    assert second.take()
    third.start()
    fleet.eventually(lambda: place("a-gpu-9") in fleet.leases(), "a place in the queue")
    assert {str(scene) for scene in third.told} == {"2 of 2 in use by a-gpu-3, a-gpu-7"}
    assert not third.has.is_set()
    first.slots.close()
    assert third.has.wait(PATIENCE_S)
    assert sorted(each["spec"]["holderIdentity"] for each in fleet.leases().values()) == [
        "a-gpu-7",
        "a-gpu-9",
    ]


def test_who_came_first_goes_first(fleet: Fleet) -> None:
    holder = fleet.user("b-0")
    holder.take()
    order: list[str] = []
    waiting = []

    def be_short(user: SlotUser) -> None:
        order.append(user.name)
        user.slots.close()

    for name in ("b-1", "b-2", "b-3", "b-4"):
        waiting.append(fleet.user(name).start(be_short))
        fleet.eventually(lambda name=name: place(name) in fleet.leases(), "a place in the queue")  # type: ignore[misc]
    holder.slots.close()
    for each in waiting:
        each.join()
    assert order == ["b-1", "b-2", "b-3", "b-4"]
    assert fleet.leases() == {}


def test_a_change_without_competition_costs_five_requests(fleet: Fleet, simulation: ApiServer) -> None:
    user = fleet.user("c-0", limit=3)
    simulation.requests.clear()
    user.take()
    user.begin()
    user.slots.close()
    asked = Counter(each.verb for each in simulation.requests.all() if each.resource == "leases")
    assert asked == {"list": 1, "watch": 1, "create": 1, "patch": 1, "delete": 1}


def test_a_slot_whose_holder_died_before_it_began_is_given_away_when_its_lease_is_over(fleet: Fleet) -> None:
    holder, other = fleet.user("d-0"), fleet.user("d-1")
    holder.take()
    died = time.monotonic()
    holder.die()
    other.start()
    assert other.has.wait(PATIENCE_S)
    assert (
        time.monotonic() - died >= QUICK.lease_s * 3 / 4
    )  # The last renewal was a quarter of it ago at most.


def test_a_slot_whose_holder_died_in_the_middle_stays_with_its_node_until_that_is_gone(fleet: Fleet) -> None:
    holder, other = fleet.user("e-0"), fleet.user("e-1")
    holder.take()
    holder.begin()
    holder.die()
    other.start()
    assert not other.has.wait(3 * QUICK.lease_s)
    fleet.delete_node("e-0")
    assert other.has.wait(PATIENCE_S)


def test_a_slot_that_nobody_comes_back_to_is_given_away_after_a_long_time(fleet: Fleet) -> None:
    rules = SlotRules(lease_s=1.0, abandoned_s=4.0)
    holder, other = fleet.user("f-0", rules=rules), fleet.user("f-1", rules=rules)
    holder.take()
    holder.begin()
    died = time.monotonic()
    holder.die()
    other.start()
    assert other.has.wait(PATIENCE_S)
    assert time.monotonic() - died >= 4.0 - rules.renew_s


def test_a_node_that_must_not_look_at_others_takes_them_to_be_in_the_middle(
    fleet: Fleet, simulation: ApiServer
) -> None:
    rules = SlotRules(lease_s=1.0, abandoned_s=4.0)
    holder, other = fleet.user("s-0", rules=rules), fleet.user("s-1", rules=rules)
    simulation.faults.add(Fault("GET", "/nodes/s-0", status=403, times=None))
    holder.take()
    died = time.monotonic()
    holder.die()
    other.start()
    assert other.has.wait(PATIENCE_S)
    assert time.monotonic() - died >= 4.0 - rules.renew_s


def test_a_node_that_comes_back_after_a_crash_has_its_slot_still(fleet: Fleet) -> None:
    holder = fleet.user("g-0")
    holder.take()
    holder.begin()
    holder.die()
    again = fleet.user("g-0", limit=2)  # A new version may also have another limit.
    assert again.take()
    again.slots.close()
    assert fleet.leases() == {}


@pytest.mark.parametrize("year", ["1970", "2199"])
def test_what_a_lease_says_of_the_time_means_nothing(fleet: Fleet, year: str) -> None:
    """The holder's clock is decades off, and jumps backwards with every renewal; nobody minds."""
    spec = {"holderIdentity": "h-0", "leaseDurationSeconds": 2}
    times = [f"{year}-01-01T00:00:{second:02}.000000Z" for second in range(20, 0, -1)]
    fleet.lease(SLOT, {**spec, "renewTime": times[0]}, {ROLE_LABEL: "slot", POOL_LABEL: ""})
    other = fleet.user("h-1").start()
    for moment in times[1:9]:
        assert not other.has.wait(0.5)
        fleet.patch_lease(SLOT, {"renewTime": moment})
    assert other.has.wait(PATIENCE_S)


def test_a_holder_that_was_cut_off_begins_nothing_once_its_slot_may_be_another_node_s(
    fleet: Fleet, simulation: ApiServer
) -> None:
    holder = fleet.user("i-0")
    holder.take()
    simulation.faults.add(Fault("PATCH", f"leases/{SLOT}", status=503, times=None))
    holder.slots.confirm()
    time.sleep(QUICK.grace_s * 1.1)
    with pytest.raises(
        SlotLostError, match=r"slot mig-manager-slot-0 could not be renewed .* another node's"
    ):
        holder.slots.confirm()


def test_a_holder_whose_slot_was_given_away_under_its_cordon_does_not_go_on(fleet: Fleet) -> None:
    holder = fleet.user("j-0")
    holder.take()
    holder.slots.confirm()
    fleet.delete_lease(SLOT)  # What another node does when the Lease is over, just before the cordon arrives.
    assert fleet.user("j-1").take()
    holder.write_journal(True)
    with pytest.raises(SlotLostError, match="taken away"):
        holder.slots.seal(Deadline.after(PATIENCE_S))
    holder.slots.close()
    assert fleet.leases()[SLOT]["spec"]["holderIdentity"] == "j-1"


def test_a_holder_at_work_goes_on_without_the_api_server(fleet: Fleet, simulation: ApiServer) -> None:
    holder, other = fleet.user("k-0"), fleet.user("k-1")
    holder.take()
    holder.begin()
    remove = simulation.faults.add(Fault("PATCH", "leases", status=503, times=None))
    other.start()
    time.sleep(1.5 * QUICK.lease_s)
    holder.slots.confirm()
    assert not other.has.is_set()
    remove()
    holder.write_journal(False)
    holder.slots.close()
    assert other.has.wait(PATIENCE_S)


def test_who_died_in_the_queue_is_passed_over_by_those_behind_who_keep_their_order(fleet: Fleet) -> None:
    holder = fleet.user("l-0")
    holder.take()
    users = [fleet.user(f"l-{number}") for number in range(1, 5)]
    for each in users:
        each.start(lambda user: user.slots.close())
        fleet.eventually(lambda each=each: place(each.name) in fleet.leases(), "a place")  # type: ignore[misc]
    users[0].die()
    users[1].die()
    assert {place("l-1"), place("l-2")} <= set(fleet.leases())
    holder.slots.close()
    assert users[2].has.wait(PATIENCE_S)
    assert users[3].has.wait(PATIENCE_S)
    fleet.eventually(lambda: fleet.leases() == {}, "no Lease to be left")


def test_places_in_the_queue_go_with_their_nodes(fleet: Fleet) -> None:
    fleet.user("m-0").take()
    waiting = fleet.user("m-1").start()
    fleet.eventually(lambda: place("m-1") in fleet.leases(), "a place")
    waiting.die()
    fleet.delete_node("m-1")
    fleet.eventually(lambda: place("m-1") not in fleet.leases(), "the place to go")


def test_while_a_limit_is_changed_node_by_node_the_larger_one_holds(fleet: Fleet) -> None:
    old = [fleet.user(f"n-old-{number}", limit=3) for number in range(3)]
    for each in old:
        assert each.take()
    new = fleet.user("n-new", limit=1)
    assert not new.take(1.5)
    assert str(new.told[-1]) == "3 of 1 in use by n-old-0, n-old-1, n-old-2"
    for each in old[:2]:
        each.slots.close()
    assert not new.take(0.5), "the slot that it does not know itself counts as well"
    old[2].slots.close()
    assert new.take()
    assert list(fleet.leases()) == [SLOT]


def test_each_pool_has_its_own_slots(fleet: Fleet) -> None:
    pools = ["", "a100", "A100_sxm", "a100-sxm"]
    users = [fleet.user(f"o-{number}", pool=pool) for number, pool in enumerate(pools)]
    assert all(user.take() for user in users)
    assert not fleet.user("o-9", pool="A100_sxm").take(0.2)


def test_without_permission_that_is_said(fleet: Fleet, simulation: ApiServer) -> None:
    simulation.faults.add(Fault("GET", "leases", status=403, times=None))
    with pytest.raises(ApiError, match="403") as caught:
        fleet.user("p-0").take()
    assert caught.value.status == 403


@pytest.mark.parametrize(
    "fault",
    [
        Fault("POST", "leases", how="cut", times=2),
        Fault("POST", "leases", status=500),
        Fault("GET", "leases", how="drop", times=2),
        Fault("GET", "leases.*watch", status=410),
    ],
    ids=["answers are lost", "500", "no answer to the list", "the version is too old"],
)
def test_trouble_on_the_way_to_a_slot_delays_it_and_no_more(
    fleet: Fleet, simulation: ApiServer, fault: Fault
) -> None:
    simulation.faults.add(fault)
    user = fleet.user("q-0", limit=2)
    assert user.take()
    user.begin()
    assert len(fleet.leases()) == 1
    user.slots.close()
    assert fleet.leases() == {}


def test_a_slot_that_cannot_be_given_back_expires(fleet: Fleet, simulation: ApiServer) -> None:
    holder, other = fleet.user("r-0"), fleet.user("r-1")
    holder.take()
    remove = simulation.faults.add(Fault("DELETE", "leases", status=403, times=None))
    holder.slots.close()
    remove()
    assert other.take()
