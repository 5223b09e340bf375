"""A wish that cannot be granted: nothing is touched, and the Node says why and what would do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mig_manager.simulation.world import CONFIG_KEY, CONFIG_MAP, NAMESPACE
from tests.daemon.conftest import MakeNode
from tests.daemon.node import LAYOUTS, GpuNode

SMALL = [f"1g.10gb@{start}" for start in range(7)]


def entry(text: str) -> str:
    """A layout file with one layout `it` of these lines."""
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return f"version: v1\nmig-configs:\n  it:\n{lines}"


ON = "mig-enabled: true"
SEVEN = 'mig-devices: {"1g.10gb": 7}'
OTHER_CARD = entry(f"- device-filter: '0x233010DE'\n  devices: all\n  {ON}\n  {SEVEN}")
CONFLICT = entry(f"- devices: all\n  {ON}\n  {SEVEN}\n- devices: [1]\n  mig-enabled: false")

CASES: list[tuple[str, str | None, str, str, tuple[str, ...]]] = [
    # what is wrong, layout file (None: as in the other tests), label, reason, parts of the message
    ("a typo", None, "smal", "UnknownLayout", ("smal ", "small?", "balanced", "all-1g.10gb")),
    ("another board", None, "other-board", "UnsupportedProfile", ("2g.10gb", "2g.20gb", "GPU 0")),
    (
        "a split",
        entry(f"- devices: all\n  {ON}\n  mig-devices: {{1c.3g.40gb: 3}}"),
        "it",
        "StrategyMismatch",
        ("1c.3g.40gb", "What helps: choose a layout"),
    ),
    ("a sum", None, "impossible", "ImpossibleLayout", ("2x3g.40gb", "GPU 0", "memory slice")),
    (
        "an index",
        entry(f"- devices: 9\n  {ON}\n  {SEVEN}"),
        "it",
        "InvalidLayout",
        (":4:", "no GPU 9", "0 to 1"),
    ),
    ("a conflict", CONFLICT, "it", "InvalidLayout", ("MIG off", "7x 1g.10gb", "GPU 1", ":7:", ":4")),
    ("no GPU", OTHER_CARD, "it", "InvalidLayout", ("no entry selects any GPU", "A100", "0x20B210DE")),
    (
        "a filter",
        entry(f"- device-filter: A100\n  devices: all\n  {ON}\n  {SEVEN}"),
        "it",
        "InvalidLayout",
        (":4:", "device-filter", "A100"),
    ),
    (
        "a doubled name",
        LAYOUTS + f"  small:\n    - devices: all\n      {ON}\n      {SEVEN}\n",
        "balanced",
        "InvalidLayout",
        (":29:", "line 6", "small"),
    ),
    ("no YAML", "version: v1\nmig-configs: {", "small", "InvalidLayout", ("config.yaml:", "YAML")),
    (
        "an unknown key",
        entry(f"- device: all\n  {ON}\n  {SEVEN}"),
        "it",
        "InvalidLayout",
        (":4:", "did you mean devices?"),
    ),
    (
        "a type",
        entry(f"- devices: all\n  mig-enabled: yes please\n  {SEVEN}"),
        "it",
        "InvalidLayout",
        (":5:", "mig-enabled", "yes please"),
    ),
    ("no version", LAYOUTS.replace("version: v1\n", ""), "small", "InvalidLayout", ("version", "v1")),
    ("no layouts", "version: v1\nmig-configs: {}\n", "small", "InvalidLayout", ("mig-configs",)),
]


@pytest.fixture
def settled(node: GpuNode) -> GpuNode:
    """A node whose GPUs are partitioned, so that there is something to lose."""
    node.becomes("small")
    return node


def test_a_bad_wish_touches_nothing_and_the_node_says_what_is_wrong(settled: GpuNode) -> None:
    node = settled
    deploy_labels = node.deploy_labels
    node.cluster.gpus.record_calls()
    node.history.forget()
    for what, layouts, label, reason, parts in CASES:
        node.set_layouts(layouts or LAYOUTS)
        status = node.becomes(label, "failed")
        node.wait(lambda: node.status["reason"] == reason, f"{what}: {reason}")  # noqa: B023
        status = node.status
        assert status["phase"] == "Validating", what
        missing = [part for part in parts if part not in status["message"]]
        assert not missing, (what, missing, status["message"])
        node.wait_event(reason, parts[0])
        assert "nextRetryAt" not in status, what
        node.label(None)
        node.wait(lambda: node.state is None, "the state to go")
    assert not node.history.touched
    assert node.cluster.gpus.calls(changes=True) == []
    assert node.deploy_labels == deploy_labels
    assert node.instances == [SMALL, SMALL]


def test_the_corrected_file_is_applied_without_another_label(settled: GpuNode) -> None:
    settled.set_layouts("version: v1\nmig-configs: {")
    before = settled.becomes("balanced", "failed")
    settled.patch_node(annotations={"mig-manager/again": "please", "mig-manager/status": None})
    settled.wait(
        lambda: settled.status.get("finishedAt", "") > before["finishedAt"],
        "another try, asked for by hand",
    )
    assert (settled.state, settled.status["message"]) == ("failed", before["message"])
    settled.set_layouts(LAYOUTS)
    settled.wait(lambda: settled.state == "success", "the corrected layout")
    assert settled.allocatable["mig-3g.40gb"] == 2


def test_a_config_map_that_lacks_the_key_names_those_that_it_has(make_node: MakeNode) -> None:
    node = make_node()
    node.start(MIG_MANAGER_CONFIG_MAP_KEY="layouts.yaml")
    status = node.becomes("small", "failed")
    assert status["reason"] == "InvalidLayout"
    assert (
        f"{NAMESPACE}/{CONFIG_MAP} has no key 'layouts.yaml'; its keys: {CONFIG_KEY!r}" in status["message"]
    )


def test_without_a_config_map_the_layouts_of_the_hardware_are_all_there_is(make_node: MakeNode) -> None:
    node = make_node()
    node.delete_layouts()
    node.start()
    status = node.becomes("small", "failed")
    assert status["reason"] == "UnknownLayout"
    assert "all-1g.10gb" in status["message"]
    node.becomes("all-1g.10gb")
    assert node.instances == [SMALL, SMALL]


def test_names_that_yaml_takes_for_something_else_are_names(make_node: MakeNode) -> None:
    names = ("y", "on", "off", "1", "0x10", "null", "1.0")
    counts = {name: 1 + at for at, name in enumerate(names)}
    body = "".join(
        f"  {name}:\n    - devices: all\n      {ON}\n      mig-devices: {{1g.10gb: {count}}}\n"
        for name, count in counts.items()
    )
    node = make_node(layouts=f"version: v1\nmig-configs:\n{body}")
    node.start()
    for name in ("off", "y", "1"):
        node.becomes(name)
        assert node.allocatable == {"mig-1g.10gb": 2 * counts[name]}
    node.wait(lambda: '"null"' in node.annotations.get("mig-manager/layouts", ""), "the names")
    assert all(f'"{name}"' in node.annotations["mig-manager/layouts"] for name in names)


def test_without_a_label_nothing_happens(make_node: MakeNode) -> None:
    node = make_node()
    node.cluster.gpus.record_calls()
    node.start()
    node.wait_requests(lambda each: each.verb == "watch" and each.resource == "nodes")
    node.patch_node(labels={"example.com/other": "label"})
    node.label("small")
    node.wait(lambda: node.state == "pending", "the first sign of a run")
    assert [each.state for each in node.history.versions if each.wanted is None] == [None] * sum(
        each.wanted is None for each in node.history.versions
    )
    assert node.terminate() == 0


# The layout file as a file.


def publish(folder: Path, text: str, version: int) -> Path:
    """Write a layout file as a kubelet mounts a ConfigMap: by swapping the link to a folder."""
    data = folder / f"..version_{version}"
    data.mkdir(parents=True)
    (data / "config.yaml").write_text(text)
    fresh = folder / "..data_tmp"
    fresh.symlink_to(data.name)
    fresh.replace(folder / "..data")
    link = folder / "config.yaml"
    if not link.is_symlink():
        link.symlink_to("..data/config.yaml")
    return link


def test_a_mounted_layout_file_replaces_the_config_map_and_is_followed(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    folder = tmp_path / "mounted"
    text = entry(f'- devices: all\n  {ON}\n  mig-devices: {{"1g.10gb": 2}}')
    file = publish(folder, text, 1)
    node.start(CONFIG_FILE=str(file))
    node.becomes("it")
    assert node.allocatable == {"mig-1g.10gb": 4}
    publish(folder, text.replace(": 2", ": 3"), 2)
    node.wait(lambda: node.allocatable == {"mig-1g.10gb": 6} and node.state == "success", "the swapped file")
    status = node.becomes("small", "failed")
    assert "mounted/config.yaml" in status["message"]


def test_a_layout_file_that_is_missing_or_unreadable_is_named_and_looked_for(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    file = tmp_path / "layouts" / "config.yaml"
    node.start(CONFIG_FILE=str(file))
    status = node.becomes("small", "failed")
    assert status["reason"] == "InvalidLayout"
    assert str(file) in status["message"]
    assert "No such file" in status["message"]
    file.mkdir(parents=True)
    node.wait(lambda: "directory" in node.status.get("message", ""), "the directory to be noticed")
    file.rmdir()
    file.write_text(LAYOUTS)
    node.wait(lambda: node.state == "success", "the file to be noticed")


def test_the_default_file_serves_for_names_that_the_config_map_lacks(
    make_node: MakeNode, tmp_path: Path
) -> None:
    node = make_node()
    default = tmp_path / "default.yaml"
    default.write_text(
        LAYOUTS.replace("  small:", "  spare:").replace("  balanced:", "  impossible-too:")
        + f'  all-1g.10gb:\n    - devices: [0]\n      {ON}\n      mig-devices: {{"1g.10gb": 1}}\n'
    )
    node.start(DEFAULT_CONFIG_FILE=str(default))
    node.becomes("all-1g.10gb")
    assert node.allocatable == {"mig-1g.10gb": 1, "gpu": 1}
    default.write_text("nonsense")
    node.becomes("balanced")
    status = node.becomes("spare", "failed")
    assert status["reason"] == "UnknownLayout"
    assert str(default) in status["message"]


def test_a_deleted_config_map_does_not_hand_its_names_to_the_generated_layouts(make_node: MakeNode) -> None:
    text = entry(f'- devices: all\n  {ON}\n  mig-devices: {{"1g.10gb": 2}}').replace(
        "  it:", "  all-1g.10gb:"
    )
    node = make_node(layouts=text)
    node.start()
    node.becomes("all-1g.10gb")
    assert node.allocatable == {"mig-1g.10gb": 4}
    node.delete_layouts()
    node.wait_event("LayoutGone", "'all-1g.10gb'")
    assert node.terminate() == 0
    node.history.forget()
    node.cluster.gpus.record_calls()
    node.start()
    node.eventually(lambda: any(call.function == "nvmlShutdown" for call in node.cluster.gpus.calls()))
    node.becomes("nonsense", "failed")
    assert not node.history.touched
    assert node.allocatable == {"mig-1g.10gb": 4}


def test_names_of_any_number_and_length_stop_neither_the_run_nor_its_report(make_node: MakeNode) -> None:
    off = "[{devices: all, mig-enabled: false}]"
    many = "".join(f"  layout-{number}: {off}\n" for number in range(600))
    text = f"version: v1\nmig-configs:\n  größe: {off}\n{many}  ? {'x' * 300_000}\n  : {off}\n"
    node = make_node(layouts=text)
    node.start()
    status = node.becomes("layout-601", "failed")
    assert status["message"].startswith("layout layout-601 is not in ")
    assert "did you mean layout-60, " in status["message"]
    node.eventually(lambda: "mig-manager/layouts" in node.annotations)
    names = json.loads(node.annotations["mig-manager/layouts"])
    assert len(names) == 500
    assert all(len(name) < 64 and name.isascii() for name in names), "a label can hold each of them"
    node.set_layouts(
        f"version: v1\nmig-configs:\n  y: [{{{', '.join(f'{c * 50}: 1' for c in 'abcdefgh' * 900)}}}]\n"
    )
    node.eventually(lambda: node.status["reason"] == "InvalidLayout")
