"""Instances by hand: profiles, placements, instances, create, destroy, generate."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from mig_manager.layouts.book import resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.layouts.schema import parse_layouts
from mig_manager.planning.catalogue import catalogue
from mig_manager.planning.offers import offers
from mig_manager.simulation.gpus import SimulatedGpus
from tests.cli.conftest import Cli
from tests.gpu.conftest import MakeNode, make_node  # noqa: F401

Held = dict[tuple[int, int], tuple[Any, ...]]


def on(cli: Cli, path: Path, gpus: str) -> list[object]:
    """Options that reach the same GPUs each time, in MIG mode and empty."""
    options: list[object] = ["--simulate", gpus, "--simulate-state", path]
    assert cli("apply", "-c", "all-enabled", *options).code == 0
    return options


@pytest.fixture
def node(cli: Cli, tmp_path: Path) -> list[object]:
    return on(cli, tmp_path / "gpus.json", "2xA100-SXM4-80GB")


def held(tmp_path: Path) -> Held:
    """All instances by GPU and id: profile, place, and the compute instances with their UUIDs."""
    return {
        (gpu["index"], item["id"]): (
            item["profile"],
            item["start"],
            item["size"],
            [(each["profile"], each["uuid"]) for each in item["compute"]],
        )
        for gpu in SimulatedGpus.open(tmp_path / "gpus.json").snapshot()["gpus"]
        for item in gpu["instances"]
    }


def table(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_profiles_are_what_nvidia_smi_lists(cli: Cli, node: list[object]) -> None:
    """As in published listings of an A100 80GB, with what is free beside a 1g.10gb and a 4g.40gb."""
    cli("create", "19:6,5", "--gpu", 0, *node)
    ended = cli("profiles", "--gpu", 0, *node)
    assert (ended.code, ended.err) == (0, "")
    assert table(ended.out) == [
        ["GPU", "NAME", "ID", "FREE/TOTAL", "GIB", "P2P", "SM", "DEC", "ENC", "CE", "JPEG", "OFA"],
        ["0", "1g.10gb", "19", "2/7", "9.50", "No", "14", "0", "0", "1", "0", "0"],
        ["0", "1g.10gb+me", "20", "1/1", "9.50", "No", "14", "1", "0", "1", "1", "1"],
        ["0", "1g.20gb", "15", "1/4", "19.50", "No", "14", "1", "0", "1", "0", "0"],
        ["0", "2g.20gb", "14", "1/3", "19.50", "No", "28", "1", "0", "2", "0", "0"],
        ["0", "3g.40gb", "9", "0/2", "39.25", "No", "42", "2", "0", "3", "0", "0"],
        ["0", "4g.40gb", "5", "0/1", "39.25", "No", "56", "2", "0", "4", "0", "0"],
        ["0", "7g.80gb", "0", "0/1", "79.00", "No", "98", "5", "0", "7", "1", "1"],
    ]
    assert ["0", "2g.20gb", "14", "{0,2,4}:2", "{4}:2"] in table(cli("placements", "-i", 0, *node).out)
    assert cli("profiles", "-o", "yaml", *node).out == yaml.safe_dump(
        cli("profiles", "-o", "json", *node).json, sort_keys=False
    )


def test_instances_are_what_nvidia_smi_lists_with_their_devices(cli: Cli, node: list[object]) -> None:
    created = cli("create", "3g.40gb:4", "1c.3g.40gb", "--gpu", 1, *node)
    assert created.code == 0, created.err
    lines = cli("instances", *node).out.splitlines()
    assert [line.split() for line in lines[:3]] == [
        ["GPU", "NAME", "PROFILE", "INSTANCE", "PLACEMENT", "COMPUTE", "USE"],
        ["1", "3g.40gb", "9", "1", "0:4", "1c.3g.40gb", "-"],
        ["1", "3g.40gb", "9", "2", "4:4", "3g.40gb", "-"],
    ]
    assert lines[3:] == ["GPU 0: no instances"]
    compute = table(cli("instances", "--compute", "--gpu", 1, *node).out)
    assert [row[:7] for row in compute[1:]] == [
        ["1", "1", "1c.3g.40gb", "0", "0", "0:1", "-"],
        ["1", "2", "3g.40gb", "2", "0", "0:3", "-"],
    ]
    assert all(row[7].startswith("MIG-") for row in compute[1:])


def test_gpus_without_mig_mode_are_listed_too(cli: Cli) -> None:
    gpus = ["--simulate", "A30,T4"]
    rows = table(cli("profiles", *gpus).out)
    assert rows[1][:4] == ["0", "1g.6gb", "14", "-/4"]
    assert {row[0] for row in rows[1:]} == {"0"}
    assert cli("instances", *gpus).out.splitlines()[1:] == ["GPU 0: MIG is off", "GPU 1: no MIG"]
    assert cli("profiles", *gpus, "-o", "json").json["gpus"][1]["profiles"] == []


def test_whatever_comes_and_goes_the_rest_stays_as_it_is(cli: Cli, tmp_path: Path) -> None:
    """A walk: each step creates what `profiles` counts as free, or destroys something, one way or another."""
    node = on(cli, tmp_path / "gpus.json", "H100-80GB-HBM3,A30")
    chance = random.Random(19)
    before = held(tmp_path)
    kept: list[tuple[Path, Any]] = []
    for step in range(9):
        gpu = chance.choice(cli("profiles", "-o", "json", *node).json["gpus"])
        at = ["--gpu", chance.choice([gpu["index"], gpu["uuid"]])]
        mine = [key for key in before if key[0] == gpu["index"]]
        free = [profile for profile in gpu["profiles"] if profile["free"]]
        if free and chance.random() < 0.65:
            new = chance.choice(free)
            word = str(chance.choice([new["id"], new["name"], f"MIG {new['name']}"]))
            count = chance.randint(1, new["free"])
            ended = cli("create", ",".join([word] * count), *at, "-o", "json", *node)
            gone: set[tuple[int, int]] = set()
            come = [new["name"]] * count
            shown = [item for each in ended.json["gpus"] for item in each["instances"]]
            assert [item["profile"] for item in shown] == come
        elif mine:
            victim = chance.choice(mine)
            profile, start, *_ = before[victim]
            how: list[object] = chance.choice([["--gi", victim[1]], [f"{profile}:{start}"], [profile]])
            ended = cli("destroy", *how, *at, *node)
            gone = {k for k in mine if before[k][0] == profile} if how == [profile] else {victim}
            come = []
        else:
            continue
        assert ended.code == 0, ended.err
        after = held(tmp_path)
        assert {key: value for key, value in before.items() if key not in gone}.items() <= after.items()
        assert sorted(after[key][0] for key in after.keys() - before.keys()) == come
        assert not gone & after.keys()
        before = after
        if step in (3, 6):
            path = tmp_path / f"{step}.json"
            assert cli("checkpoint", path, *node).code == 0
            kept.append((path, cli("export", "-o", "json", *node).json))
    chance.shuffle(kept)
    for path, exported in kept:
        assert cli("restore", path, *node).code == 0
        assert cli("export", "-o", "json", *node).json == exported
        assert cli("checkpoint", "-", *node).out == path.read_text()


def test_create_fills_the_gpu_instance_unless_told_otherwise(
    cli: Cli, node: list[object], tmp_path: Path
) -> None:
    at = ["--gpu", 0]
    assert cli("create", "2g.20gb:0", *at, "-C", *node).code == 0
    assert cli("create", "3g.40gb", "--no-compute", *at, *node).code == 0
    assert [(value[0], [each for each, _ in value[3]]) for value in sorted(held(tmp_path).values())] == [
        ("2g.20gb", ["2g.20gb"]),
        ("3g.40gb", []),
    ]
    (bare,) = [gi for (_, gi), value in held(tmp_path).items() if not value[3]]
    assert cli("create", "1c.3g.40gb,1c.3g.40gb:2", "--gi", bare, *at, *node).code == 0
    first = held(tmp_path)[0, bare][3]
    assert [name for name, _ in first] == ["1c.3g.40gb", "1c.3g.40gb"]
    assert cli("destroy", "--gi", bare, "--ci", 1, *at, *node).code == 0
    assert held(tmp_path)[0, bare][3] == first[:1], "the other one keeps its UUID"
    assert cli("create", 0, "--gi", bare, *at, *node).code == 0
    assert cli("create", "2c.3g.40gb", "--gi", bare, *at, *node).code == 2


def test_what_is_gone_is_listed_for_scripts_as_well(cli: Cli, node: list[object]) -> None:
    at = ["--gpu", 0, *node]
    new = cli("create", "1g.10gb:0,1c.3g.40gb:4", *at, "-o", "json").json["gpus"]
    small, split = new[0]["instances"]
    compute = cli("destroy", "--gi", split["id"], "--ci", 0, *at, "-o", "json")
    assert compute.json["gpus"] == [{**new[0], "instances": [split]}], "the compute instance that was in it"
    gone = cli("destroy", "--gi", small["id"], *at, "-o", "yaml")
    assert yaml.safe_load(gone.out)["gpus"] == [{**new[0], "instances": [small]}]
    assert cli("destroy", "--all", *at, "-o", "json").json["gpus"][0]["instances"] == [
        {**split, "compute": []}
    ]
    assert cli("destroy", "--all", *at, "-o", "json").json["gpus"][0]["instances"] == []


def test_all_gpus_get_the_same_or_none_gets_any(cli: Cli, node: list[object], tmp_path: Path) -> None:
    assert cli("create", "1g.10gb", "--gpu", "all", *node).code == 0
    before = held(tmp_path)
    gpus = SimulatedGpus.open(tmp_path / "gpus.json")
    gpus.fail("nvmlDeviceCreateGpuInstanceWithPlacement", 999, gpu=1)
    ended = cli("create", "2g.20gb", "--gpu", "0,1", *node)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.startswith("error: NvmlError: GPU 1")
    assert "The previous layout is back." in ended.err
    assert held(tmp_path) == before
    assert cli("destroy", "--all", "--gpu", "all", *node).code == 0
    assert held(tmp_path) == {}
    assert cli("destroy", "--all", "--gpu", "all", *node).out == "nothing to destroy\n"


def test_what_is_in_use_is_refused_with_who_uses_it(cli: Cli, node: list[object], tmp_path: Path) -> None:
    cli("create", "1g.10gb:0,1g.10gb:1,1c.3g.40gb:4", "--gpu", 0, *node)
    gpus = SimulatedGpus.open(tmp_path / "gpus.json")
    by_start = {value[1]: gi for (_, gi), value in held(tmp_path).items()}
    idle, busy, split = by_start[0], by_start[1], by_start[4]
    gpus.add_process(0, busy, 0, pid=4242, name="train")
    gpus.add_process(0, split, 0, pid=4343, name="train")
    before = held(tmp_path)
    gpus.record_calls()
    for how, pid in ((["--all"], 4242), ([f"--gi={idle},{busy}"], 4242), ([f"--gi={split}", "--ci=0"], 4343)):
        ended = cli("destroy", *how, "--gpu", 0, *node)
        assert (ended.code, ended.out) == (3, "")
        assert ended.err.startswith("error: GpuInUse: ")
        assert f"pid {pid}" in ended.err
        assert f"GPU instance {idle} " not in ended.err
    assert gpus.calls(changes=True) == []
    assert cli("destroy", "--gi", idle, "--gpu", 0, *node).code == 0
    assert {(0, busy): before[0, busy], (0, split): before[0, split]} == held(tmp_path)


MIXED = "2xA100-SXM4-80GB,T4,A30"


def test_a_generated_file_means_what_the_generated_layouts_mean(make_node: MakeNode, cli: Cli) -> None:  # noqa: F811
    """And nvidia-mig-parted reads it: it knows these keys, and rejects all others."""
    models = [model.title for model in catalogue() if model.geometry is not None]
    for gpus in (MIXED, "2xH100-80GB-HBM3", "T4", ",".join(models)):
        made = make_node(gpus)
        inventory = made.worker.inventory()
        made.worker.close()
        identities = [state.gpu for state in inventory.gpus]
        text = cli("generate", "--simulate", gpus).out
        book, generated = parse_layouts(text, file="generated.yaml"), generate_layouts(offers(inventory))
        assert list(book.layouts) == list(generated.layouts)
        for name, layout in generated.layouts.items():
            expected = resolve(layout, identities)
            read = resolve(book.get(name), identities)
            assert [(t.gpu, t.mig_enabled, t.devices) for t in read.gpus] == [
                (t.gpu, t.mig_enabled, t.devices) for t in expected.gpus
            ], (gpus, name)
        document = yaml.safe_load(text)
        assert cli("generate", "-o", "json", "--simulate", gpus).json == document
        assert set(document) == {"version", "mig-configs"}
        for entries in document["mig-configs"].values():
            for entry in entries:
                assert entry.keys() <= {"device-filter", "devices", "mig-enabled", "mig-devices"}
                assert entry["devices"] == "all" or all(isinstance(each, int) for each in entry["devices"])
                assert ("mig-devices" in entry) is entry["mig-enabled"]


USAGE: dict[str, tuple[str, list[str]]] = {
    "no such GPU": ("create 19 --gpu 9", ["--gpu 9", "0 to 2"]),
    "no GPU at all": ("profiles --gpu x", ["--gpu x", "0 to 2"]),
    "nearly a UUID": ("profiles --gpu GPU-12", ["GPU-12", "the GPUs are GPU-"]),
    "an empty place in the GPUs": ("profiles --gpu 0,,1", ["--gpu", "0,,1"]),
    "several GPUs, none named": ("create 19", ["--gpu is missing", "2 GPUs with MIG"]),
    "a GPU without MIG": ("create 19 --gpu 2", ["GPU 2 (Tesla T4)", "no MIG"]),
    "no profile": ("create --gpu 0", ["PROFILES"]),
    "profile id of no profile": ("create 18 --gpu 0", ["no profile with ID 18", "19 (1g.10gb), 20 (1g.10gb+me), 15"]),
    "name of another memory size": ("create 2g.10gb --gpu 0", ["+me, 1g.20gb, 2g.20gb", "Did you mean 2g.20gb?"]),
    "name that is none": ("create 1g.10bg --gpu 0", ["1g.10bg", "did you mean 1g.10gb?"]),
    "an empty place in the profiles": ("create 19,,19 --gpu 0", ["19,,19", "missing"]),
    "a start that is no number": ("create 19:x --gpu 0", ["19:x", "first slice"]),
    "a start where none begins": ("create 9:3 --gpu 0", ["3g.40gb", "memory slice 3", "0, 4"]),
    "a start that is taken": ("create 9:4 --gpu 0", ["no room for 1x3g.40gb:4", "2g.20gb at 4-5", "0-3 are free"]),
    "more than there is room": ("create 9,9 --gpu 0", ["no room for 2x3g.40gb", "2g.20gb at 4-5"]),
    "the whole GPU": ("create 0 --gpu 0", ["no room for 1x7g.80gb", "slices 0-7, of which none are free"]),
    "more media engines than there are": ("create 20,20 --gpu 0", ["2x1g.10gb+me", "more instances of 1g.10gb+me"]),
    "a split without compute": ("create 1c.3g.40gb --no-compute --gpu 0", ["1c.3g.40gb", "--no-compute"]),
    "a GPU instance that is not there": ("create 0 --gi 9 --gpu 0", ["no GPU instance 9", "2g.20gb at 4-5"]),
    "compute in a full instance": ("create 1c.2g.20gb --gi {gi} --gpu 0", ["no room", "2c at 0-1"]),
    "compute of another profile": ("create 3g.40gb --gi {gi} --gpu 0", ["no compute instance 3g.40gb", "1c.2g.20gb"]),
    "compute of no profile": ("create 7 --gi {gi} --gpu 0", ["no compute instance 7", "1 (2g.20gb at 0)"]),
    "compute in two GPUs, one of them without MIG": ("create 0 --gi {gi} --gpu 0,2", ["GPU 2 (Tesla T4)"]),
    "nothing to destroy named": ("destroy --gpu 0", ["--gi", "--all"]),
    "two ways to destroy": ("destroy --all --gi {gi} --gpu 0", ["one way"]),
    "destroy by a bare number": ("destroy 14 --gpu 0", ["--gi 14"]),
    "destroy what is not there": ("destroy 1g.10gb --gpu 0", ["no 1g.10gb", "2g.20gb at 4-5"]),
    "destroy at another place": ("destroy 2g.20gb:0 --gpu 0", ["2g.20gb:0", "2g.20gb at 4-5"]),
    "destroy an id that is not there": ("destroy --gi {gi},9 --gpu 0", ["no GPU instance 9"]),
    "destroy a compute id that is not there": ("destroy --gi {gi} --ci 3 --gpu 0", ["no compute instance 3", "0 (2g"]),
    "destroy compute of several": ("destroy --gi {gi},1 --ci 0 --gpu 0", ["--ci", "one GPU instance"]),
    "destroy compute by name": ("destroy 1c.2g.20gb --gpu 0", ["--ci"]),
    "an id that is no number": ("destroy --gi x --gpu 0", ["--gi x"]),
    "MIG off": ("create 19 --gpu 1", ["GPU 1", "MIG is off"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """An A100 with a 2g.20gb, one with MIG off, a T4; the id of the instance."""
    from mig_manager.cli.main import command_line

    directory = tmp_path_factory.mktemp("mixed")
    layouts = directory / "layouts.yaml"
    layouts.write_text(
        "version: v1\nmig-configs:\n  one: [{devices: [0], mig-enabled: true, mig-devices: {}}]\n"
    )
    path = directory / "gpus.json"
    node = ["--simulate", "2xA100-SXM4-80GB,T4", "--simulate-state", str(path)]
    assert command_line(["apply", "-f", str(layouts), "-c", "one", *node]) == 0
    assert command_line(["create", "14:4", "--gpu", "0", *node]) == 0
    (instance,) = SimulatedGpus.open(path).snapshot()["gpus"][0]["instances"]
    return path, instance["id"]


@pytest.mark.parametrize("name", USAGE)
def test_a_bad_word_is_one_message_and_exit_code_2(cli: Cli, mixed: tuple[Path, int], name: str) -> None:
    text, says = USAGE[name]
    path, instance = mixed
    before = SimulatedGpus.open(path).snapshot()
    ended = cli(*text.format(gi=instance).split(), "--simulate-state", path)
    assert (ended.code, ended.out) == (2, ""), ended
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) <= 2, ended.err
    assert [word for word in says if word not in ended.err] == [], ended.err
    assert SimulatedGpus.open(path).snapshot() == before
