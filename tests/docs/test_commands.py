"""The commands that the documentation shows do what it shows.

Each section's commands run one after the other, in a directory of their own and against a simulated cluster whose Nodes
are as the section says. What stands below a command is what it prints, but for times, UUIDs and ports; `...` stands for
anything. JSON holds what is shown, and may hold more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from mig_manager.daemon.settings import Settings, environment_name
from mig_manager.simulation.apiserver import ApiServer
from mig_manager.simulation.objects import Change
from mig_manager.simulation.resources import PODS
from mig_manager.simulation.store import MemoryStore
from tests.cli.conftest import Cli, cli
from tests.cli.kubectl.cluster import Cluster
from tests.docs.comparing import assert_shown
from tests.docs.examples import DATA, PAGES, ROOT, Example, blocks, inline, name_of
from tests.docs.scenes import ENDS, NAMED, NOT_RUN, SCENES, fleet
from tests.docs.shell import KNOWN, OURS, Shell, parts
from tests.docs.stage import LAYOUTS, Scene
from tests.security.bed import REAL

__all__ = ["cli"]

SHOWN = [block for page in PAGES for block in blocks(page) if not block.is_data]
SECTIONS: dict[tuple[str, str], list[Example]] = {}
for _block in SHOWN:
    SECTIONS.setdefault((_block.page, _block.section), []).extend(_block.examples)
EVERY = [(page, each) for (page, _), examples in SECTIONS.items() for each in examples]


def why_not(example: Example) -> str:
    """Why it cannot be run here; empty where it can."""
    return next((why for start, why in NOT_RUN.items() if example.command.startswith(start)), "")


RUN = {
    place: found
    for place, examples in SECTIONS.items()
    if (found := [each for each in examples if not why_not(each)])
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster in which pods end as soon as they are told to, and daemons have written a line of a run."""
    store = MemoryStore()

    def end(change: Change) -> None:
        meta = change.object["metadata"]
        if change.resource == PODS and "deletionTimestamp" in meta and change.type == "MODIFIED":
            store.remove(PODS, meta["namespace"], meta["name"], meta["uid"])

    store.subscribe(end)
    line = json.dumps({"run": "3593397f", "message": "GPUs 0-1: the change begins"})
    with ApiServer(store, pod_log=lambda pod, container: f"{line}\n") as server:
        kubeconfig = tmp_path_factory.mktemp("docs") / "kubeconfig"
        server.write_kubeconfig(kubeconfig)
        yield Cluster(server, kubeconfig)


@pytest.fixture(scope="module")
def made() -> dict[tuple[str, str], str]:
    """Files of simulated GPUs, made when they are first needed."""
    return {}


@pytest.fixture
def scene(
    cluster: Cluster, made: dict[tuple[str, str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Scene]:
    """An empty cluster, and a checkout of the project with a layout file of one's own."""
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    monkeypatch.chdir(tmp_path)
    for name in ("config", "deploy"):
        Path(name).symlink_to(ROOT / name)
    Path("layouts.yaml").write_text(LAYOUTS)
    scene = Scene(cluster, Shell(tmp_path, cluster.kubeconfig, monkeypatch), made)
    scene.clear()
    yield scene
    scene.clear()


@pytest.mark.parametrize("place", RUN, ids=": ".join)
def test_commands_do_what_is_shown(place: tuple[str, str], scene: Scene) -> None:
    SCENES.get(place, fleet)(scene)
    for each in RUN[place]:
        command = re.sub(r"\b[A-Z_]+\b", lambda word: NAMED.get(word[0], word[0]), each.command)
        ended = scene.shell.run(command)
        assert ended.code == ENDS.get((place[0], each.command), 0), f"{command}\n{ended.out}{ended.err}"
        assert_shown(each, ended)
    assert scene.shell.cues == [], "all that the scene waits for has been printed"


@pytest.mark.parametrize(("page", "example"), EVERY, ids=[f"{page}: {each.command}" for page, each in EVERY])
def test_what_is_not_run_could_at_least_be_typed(page: str, example: Example) -> None:
    for part in parts(example.command):
        if not why_not(example):
            assert part.operator == ">" or part.program in KNOWN, "run it, or say in NOT_RUN why not"
        elif part.program in OURS:
            assert_can_be_typed(part.program, part.words)
        elif part.program == "make":
            assert_are_targets(part.words)
        for word in part.words:
            if re.match(r"(config|deploy|tests)/", word):
                assert (ROOT / word).exists(), word
    for variable in re.findall(r"^([A-Z_]+)=", example.command):
        assert variable in {REAL, *map(environment_name, Settings.model_fields)}


def assert_can_be_typed(program: str, words: tuple[str, ...]) -> None:
    """The program has the command, and the command these options."""
    commands = OURS[program]
    assert words[0] in commands, f"{program} {words[0]}"
    if len(words) > 1 and "--help" not in words:
        commands[words[0]].make_context(words[0], list(words[1:]))


def assert_are_targets(words: tuple[str, ...]) -> None:
    """The Makefile has them."""
    (targets,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {word for word in words if "=" not in word} <= set(targets.split())


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_within_the_text_can_be_typed(page: Path) -> None:
    for text in inline(page):
        if re.match(r"(mig-manager|kubectl mig|make) \w", text) and "..." not in text:
            (part,) = parts(text)
            if part.program in OURS:
                assert_can_be_typed(part.program, part.words)
            else:
                assert_are_targets(part.words)


def test_what_is_said_of_examples_is_said_of_some() -> None:
    commands = [each.command for _, each in EVERY]
    assert [start for start in NOT_RUN if not any(each.startswith(start) for each in commands)] == []
    assert set(SCENES) <= set(RUN)
    assert set(ENDS) <= {(page, each.command) for page, each in EVERY}
    assert all(block.language in ({"console", "sh"} | DATA) for block in SHOWN if block.fenced)


def test_the_file_that_is_written_by_hand_is_taken(tmp_path: Path, cli: Cli) -> None:
    (block,) = (each for each in blocks(ROOT / "docs/cli.md") if each.language == "json")
    file = tmp_path / "gpus.json"
    file.write_text(block.text)
    told = cli("plan", "--current", file, "-c", "all-balanced")
    assert (told.code, "in use!" in told.out or "busy" in told.out) == (0, True)
