"""State files: what `export -o json` prints is read back the same; every mistake is named with its place."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from mig_manager.cli.documents import known_uuid, state_document
from mig_manager.cli.errors import InputError
from mig_manager.cli.statefile import parse_state, read_state
from mig_manager.planning.geometry import Placement

A100 = "NVIDIA A100-SXM4-80GB"


def gpu(*instances: Mapping[str, Any], **other: Any) -> dict[str, Any]:
    return {"index": 0, "uuid": "GPU-0", "model": A100, "mig": True, "instances": list(instances), **other}


def instance(profile: str, start: int, size: int, **other: Any) -> dict[str, Any]:
    return {"profile": profile, "start": start, "size": size, "compute": [profile], "busy": False, **other}


def document(*gpus: Mapping[str, Any], **other: Any) -> str:
    return json.dumps({"version": "v1", "gpus": list(gpus), **other})


def test_a_printed_state_is_read_back_the_same() -> None:
    text = document(
        gpu(
            instance("1g.10gb", 0, 1, busy=True),
            instance("1g.10gb+me", 1, 1),
            instance("2g.20gb", 2, 2, compute=[]),
            instance("3g.40gb", 4, 4, compute=["1c.3g.40gb", "1c.3g.40gb"]),
            pending=False,
            bus_id="00000000:07:00.0",
            subsystem_id="0x147F10DE",
        ),
        gpu(index=1, uuid="GPU-1", model="NVIDIA A30", mig=False, busy=True),
        gpu(index=3, uuid=None, model="T4", mig=False),
    )
    inventory = parse_state(text, file="gpus.json")
    printed = state_document(inventory)
    assert state_document(parse_state(json.dumps(printed), file="again")) == printed
    assert [item.gpu.index for item in inventory.gpus] == [0, 1, 3]
    assert [item.gpu.mig_capable for item in inventory.gpus] == [True, True, False]
    first = inventory.gpus[0]
    assert (first.gpu.bus_id, first.gpu.subsystem_id) == ("00000000:07:00.0", 0x147F10DE)
    assert (first.mig_current, first.mig_pending) == (True, False)
    assert [item.busy for item in first.instances] == [True, False, False, False]
    assert [[compute.slices for compute in item.compute] for item in first.instances] == [
        [1],
        [1],
        [],
        [1, 1],
    ]
    assert inventory.gpus[1].busy


def test_what_is_left_out_is_taken_as_the_usual() -> None:
    text = document(
        {"model": "a100 sxm4 80gb", "mig": True, "instances": [{"profile": "3g.40gb", "start": 4}]}
    )
    state = parse_state(text, file="gpus.json").gpus[0]
    assert (state.gpu.index, known_uuid(state.gpu), state.gpu.model) == (0, None, A100)
    assert state.instances[0].placement == Placement(4, 4)
    assert [compute.slices for compute in state.instances[0].compute] == [3]
    assert not state.instances[0].busy


MISTAKES: dict[str, tuple[str, list[str]]] = {
    "empty file": ("", ["is not JSON", "export -o json"]),
    "yaml": ("version: v1", ["is not JSON", "line 1 column 1"]),
    "deep nesting": ("[" * 100_000, ["is not JSON"]),
    "a list": ("[]", ["top level", "found a list", "an object"]),
    "no version": ('{"gpus": []}', ["top level", "'version'"]),
    "another version": ('{"version": "v2", "gpus": []}', ["version", "'v2'", "v1"]),
    "version as number": ('{"version": 1, "gpus": []}', ["version", "found 1", "text"]),
    "no gpus": ('{"version": "v1"}', ["'gpus'"]),
    "empty gpus": (document(), ["gpus", "no GPU"]),
    "gpus as object": ('{"version": "v1", "gpus": {}}', ["gpus", "found an object", "list"]),
    "unknown key": (document(gpu(), gpsu=1), ["top level", "'gpsu'", "did you mean 'gpus'"]),
    "twice the same key": ('{"version": "v1", "version": "v1", "gpus": []}', ["'version' twice"]),
    "unknown key of a gpu": (document(gpu(modle="x")), ["gpus[0]", "'modle'", "'model'"]),
    "unknown model": (document(gpu(model="A100-SXM4-81GB")), ["gpus[0].model", "A100-SXM4-80GB"]),
    "index below 0": (document(gpu(index=-1)), ["gpus[0].index", "found -1"]),
    "index as boolean": (document(gpu(index=True)), ["gpus[0].index", "found true"]),
    "index twice": (document(gpu(), gpu(uuid="GPU-1")), ["gpus[1]", "GPU 0", "twice"]),
    "index of thousands of digits": ('{"version": ' + "1" * 5000 + "}", ["is not JSON", "digits"]),
    "uuid that cannot be printed": (document(gpu(uuid="\ud800")), ["gpus[0].uuid", "printed"]),
    "uuid that moves the cursor": (document(gpu(uuid="\x1b[A")), ["gpus[0].uuid", r'"\u001b[A"']),
    "uuid twice": (document(gpu(), gpu(index=1)), ["gpus[1]", "GPU-0", "GPU 0"]),
    "mig as text": (document(gpu(mig="on")), ["gpus[0].mig", 'found "on"', "true or false"]),
    "mig as object": (document(gpu(mig={"current": True})), ["gpus[0].mig", "found an object"]),
    "mig on a T4": (document(gpu(model="T4")), ["gpus[0].mig", "no MIG"]),
    "instances on a T4": (
        document(gpu({"profile": "1g.10gb", "start": 0}, model="T4", mig=False)),
        ["gpus[0].instances", "no MIG"],
    ),
    "instances with MIG off": (
        document(gpu(instance("1g.10gb", 0, 1), mig=False)),
        ["gpus[0].instances", "MIG off"],
    ),
    "instances as object": (document(gpu(instances={})), ["gpus[0].instances", "found an object"]),
    "bus id": (document(gpu(bus_id="7")), ["gpus[0].bus_id", "00000000:07:00.0"]),
    "bus id twice": (
        document(gpu(bus_id="07:00.0"), gpu(index=1, uuid="GPU-1", bus_id="00000000:07:00.0")),
        ["gpus[1]", "bus_id 00000000:07:00.0", "GPU 0"],
    ),
    "subsystem id": (document(gpu(subsystem_id="146310DE")), ["gpus[0].subsystem_id", "0x20B210DE"]),
    "unknown model of an unknown device": (
        document(gpu(model="A30X", device_id="0x4FFF10DE")),
        ["gpus[0].model", "'A30X'"],
    ),
    "device id": (document(gpu(device_id="A100")), ["gpus[0].device_id", "0x20B210DE"]),
    "no profile": (document(gpu({"start": 0})), ["gpus[0].instances[0]", "'profile'"]),
    "profile of another memory size": (
        document(gpu(instance("1g.10gb", 0, 1), instance("2g.10gb", 2, 2))),
        ["gpus[0].instances[1].profile", "2g.10gb", "2g.20gb"],
    ),
    "no profile name": (
        document(gpu(instance("MIG 1g.10gb", 0, 1))),
        ["gpus[0].instances[0].profile", "'MIG 1g.10gb'"],
    ),
    "start that the model does not have": (
        document(gpu(instance("3g.40gb", 2, 4))),
        ["gpus[0].instances[0].start", "0-3, 4-7"],
    ),
    "start out of range": (
        document(gpu(instance("1g.10gb", 7, 1))),
        ["gpus[0].instances[0].start", "starts at 7"],
    ),
    "size that the model does not have": (
        document(gpu(instance("3g.40gb", 4, 3))),
        ["gpus[0].instances[0].size", "0-3, 4-7"],
    ),
    "overlap": (
        document(gpu(instance("1g.10gb", 5, 1), instance("3g.40gb", 4, 4))),
        ["gpus[0].instances[1]", "slice 5", "gpus[0].instances[0]", "1g.10gb"],
    ),
    "more than the model holds": (
        document(gpu(instance("1g.10gb+me", 0, 1), instance("1g.10gb+me", 1, 1))),
        ["gpus[0].instances[1]", "at most 1 x 1g.10gb+me"],
    ),
    "compute instance of another profile": (
        document(gpu(instance("3g.40gb", 4, 4, compute=["1c.2g.20gb"]))),
        ["gpus[0].instances[0].compute[0]", "1c.2g.20gb", "1c.3g.40gb"],
    ),
    "too many compute instances": (
        document(gpu(instance("3g.40gb", 4, 4, compute=["2c.3g.40gb", "2c.3g.40gb"]))),
        ["gpus[0].instances[0].compute", "2 + 2"],
    ),
    "compute as number": (
        document(gpu(instance("3g.40gb", 4, 4, compute=3))),
        ["gpus[0].instances[0].compute", "found 3", "list"],
    ),
    "busy as text": (
        document(gpu(instance("3g.40gb", 4, 4, busy="no"))),
        ["gpus[0].instances[0].busy", "true or false"],
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_its_place(name: str) -> None:
    text, expected = MISTAKES[name]
    with pytest.raises(InputError) as caught:
        parse_state(text, file="gpus.json")
    message = str(caught.value)
    assert message.startswith("gpus.json: ")
    assert [fragment for fragment in expected if fragment not in message] == [], message
    assert len(message) < 600


def test_a_file_that_cannot_be_read_is_named(tmp_path: Any) -> None:
    for name, content in {"missing.json": None, "binary.json": b"\xff\xfe\x00"}.items():
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            read_state(path)
    with pytest.raises(InputError, match="directory"):
        read_state(tmp_path)
