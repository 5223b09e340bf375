"""Every published layout on the device, one after the other: what stays of the last one makes no difference."""

from __future__ import annotations

from collections import Counter
from itertools import zip_longest

from tests.gpu.conftest import MakeNode
from tests.gpu.node import kinds
from tests.planning import published


def test_gpus_of_every_kind_hold_every_layout_that_is_published_for_them(make_node: MakeNode) -> None:
    models = kinds()
    node = make_node(models)
    before = node.apply(*[""] * len(models))
    rounds = zip_longest(*(published.layouts(model.title) for model in models), fillvalue=())
    done = 0
    for layouts in rounds:
        before = node.apply(*map(" ".join, layouts), before=before)
        held = [Counter(str(each.profile) for each in state.instances) for state in before.gpus]
        assert held == [Counter(layout) for layout in layouts]
        done += sum(map(bool, layouts))
    assert done == sum(len(list(published.layouts(model.title))) for model in models)
