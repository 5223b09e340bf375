"""What somebody takes off the Node is written again, but nobody gets us to write without end."""

from __future__ import annotations

from itertools import pairwise

from mig_manager.cluster.objects import NodeMeta
from mig_manager.daemon.said import Said
from mig_manager.daemon.status import STATE_LABEL


def whole(version: int) -> NodeMeta:
    return NodeMeta("gpu-1", "uid-1", str(version), {STATE_LABEL: "success"}, {})


def bare(version: int) -> NodeMeta:
    return NodeMeta("gpu-1", "uid-1", str(version), {}, {})


def test_a_label_that_is_taken_off_at_every_change_is_written_ever_less_often() -> None:
    """As by an admission webhook: the answer to the change lacks it, and nothing else ever happens to the Node."""
    now = 0.0
    said = Said(lambda: now)
    said.note(whole(1))
    written: list[float] = []
    while now < 3000:
        if said.missing(bare(2)):
            written.append(now)
            said.written_again()
            said.note(bare(2))
        assert said.deadline(bare(2)).at > now
        now = said.deadline(bare(2)).at
    pauses = [later - earlier for earlier, later in pairwise(written)]
    assert written[0] == 0.0, "the first time at once"
    assert pauses[:4] == [1.0, 2.0, 4.0, 8.0]
    assert max(pauses) == 600.0


def test_what_goes_once_in_a_while_is_written_at_once_each_time() -> None:
    now = 0.0
    said = Said(lambda: now)
    said.note(whole(1))
    for _ in range(3):
        assert said.missing(bare(2)).labels == {STATE_LABEL: "success"}
        said.written_again()
        assert not said.missing(bare(2))
        now += 2 * 3600
    assert said.deadline(whole(3)).at == float("inf")
