"""Who holds what is about to change: which processes count, which never do, and how they are named."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest

from mig_manager.errors import MigManagerError, Reason
from mig_manager.gpu.clearance import IGNORED, Clearance
from mig_manager.gpu.holders import Holder, Stake, find_holders, in_words, wait_until_free
from mig_manager.gpu.procfs import HostFiles
from mig_manager.gpu.readings import GpuUsage
from mig_manager.layouts.layout import GpuIdentity
from mig_manager.layouts.profile import MigProfile
from mig_manager.planning.geometry import Placement
from mig_manager.planning.plan import NodePlan
from mig_manager.planning.planner import plan_node
from mig_manager.planning.state import ComputeInstance, GpuInstance
from mig_manager.simulation.gpu.hostfiles import PERSISTENCED_PID
from tests.gpu.conftest import MakeNode
from tests.gpu.node import Node

POD = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
CGROUP = f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/cri-containerd-{'ab' * 32}.scope"


def plan(node: Node, *wanted: str | None) -> NodePlan:
    before = node.worker.inventory()
    return plan_node(node.target(*wanted, inventory=before), before)


def holders(node: Node, of: NodePlan, ignored: tuple[str, ...] = IGNORED) -> tuple[Holder, ...]:
    return Clearance(node.worker, node.files, ignored=ignored).holders(of)


def seen(found: tuple[Holder, ...]) -> dict[int, str]:
    return {each.pid: " and ".join(map(str, each.holds)) for each in found}


def instance(node: Node, profile: str, gpu: int = 0) -> GpuInstance:
    return next(i for i in node.worker.inventory().gpus[gpu].instances if str(i.profile) == profile)


def test_for_an_instance_only_its_own_users_count(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB", host_files=True, minors=[3, 1])
    node.apply("3g.40gb 2g.20gb 1g.10gb", "7g.80gb")
    going, staying = instance(node, "2g.20gb"), instance(node, "3g.40gb")
    node.run(0, staying, pid=9_000_001)
    node.gpus.hold(pid=9_000_002, name="monitor with every GPU open")
    node.gpus.add_process(0, going.id, pid=9_000_003, name="nv-hostengine -n", kind="handle")
    node.gpus.add_process(0, going.id, 0, pid=9_000_004, name="python train.py", cgroup=CGROUP)
    node.gpus.add_process(0, going.id, 0, pid=9_000_005, name="Xorg", kind="graphics")
    node.gpus.add_process(0, going.id, 0, pid=9_000_006, name="nvidia-cuda-mps-server", kind="mps")
    node.run(1, instance(node, "7g.80gb", gpu=1), pid=9_000_007)
    found = holders(node, plan(node, "3g.40gb 1g.10gb 1g.10gb 1g.10gb", None))
    place = f"2g.20gb at {going.placement.start} on GPU 0"
    assert seen(found) == dict.fromkeys(range(9_000_003, 9_000_007), place)
    pod = next(each for each in found if each.pid == 9_000_004)
    assert (pod.command, pod.owner.pod_uid, pod.owner.container) == ("python train.py", POD, "ab" * 32)
    assert pod.started is not None
    assert pod.started.timestamp() == 1_700_000_001
    assert str(pod) == f"pid 9000004 (python train.py, pod {POD}) holds {place}"


def test_a_compute_instance_that_goes_does_not_concern_its_neighbours(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3", host_files=True)
    node.apply("1c.4g.40gb 2c.4g.40gb 1c.4g.40gb")
    change = plan(node, "2c.4g.40gb 1c.4g.40gb")
    (kept,) = change.gpus[0].keep
    (gone,) = kept.destroy
    for compute in kept.instance.compute:
        assert compute.id is not None
        node.gpus.add_process(0, kept.instance.id, compute.id, pid=9_000_010 + compute.id, name="job")
        node.gpus.add_process(
            0, kept.instance.id, compute.id, pid=9_000_020 + compute.id, name="leak", kind="handle"
        )
    assert gone.id is not None
    assert list(seen(holders(node, change))) == [9_000_010 + gone.id, 9_000_020 + gone.id]


def test_a_mode_change_concerns_whoever_has_the_gpu_open(make_node: MakeNode) -> None:
    node = make_node("2xA100-SXM4-80GB", host_files=True, minors=[1, 0], drm=True)
    node.apply("off", "off")
    node.gpus.add_process(0, pid=9_000_001, name="train", cgroup=CGROUP)
    node.gpus.add_process(1, pid=9_000_002, name="other")
    node.gpus.add_process(0, pid=9_000_003, name="dcgm", kind="handle", cgroup="/system.slice/dcgm.service")
    node.gpus.hold(pid=9_000_004, name="monitor")
    node.gpus.add_process(0, pid=9_000_005, name="/usr/bin/nv-fabricmanager -c x", kind="handle")
    display = node.files.proc / "9000006"
    shutil.copytree(node.files.proc / "9000002", display, symlinks=True)
    for link in (display / "fd").iterdir():
        link.unlink()
    (display / "fd/7").symlink_to("/dev/dri/card0")
    change = plan(node, "7g.80gb", None)
    found = holders(node, change)
    assert seen(found) == dict.fromkeys((9_000_001, 9_000_003, 9_000_004, 9_000_006), "GPU 0")
    assert "pid 9000003 (dcgm, dcgm.service) holds GPU 0" in in_words(found)
    assert 9_000_005 in seen(holders(node, change, ignored=()))


@pytest.mark.parametrize(("model", "in_the_way"), [("A100-SXM4-80GB", True), ("H100-80GB-HBM3", False)])
def test_the_persistence_daemon_is_in_the_way_of_a_reset_if_it_does_not_let_go(
    make_node: MakeNode, model: str, in_the_way: bool
) -> None:
    node = make_node(f"1x{model}", host_files=True, persistence=True)
    change = plan(node, "7g.80gb")
    assert (node.files.proc / f"{PERSISTENCED_PID}").is_dir()
    assert holders(node, change) == (), "it lets go when the mode is switched off"
    name = "/usr/bin/nvidia-persistenced --verbose"
    node.gpus.add_process(0, pid=9_000_001, name=name, kind="handle", cgroup="/system.slice/np.service")
    node.worker.set_persistence([(change.gpus[0].gpu, False)])
    assert [each.pid for each in holders(node, change)] == ([9_000_001] if in_the_way else [])


def test_processes_that_come_and_go_or_cannot_be_read_are_passed_over(make_node: MakeNode) -> None:
    node = make_node("1xH100-80GB-HBM3", host_files=True)
    first = 9_000_001
    for pid in range(first, first + 6):
        node.gpus.add_process(0, pid=pid, name="held", kind="handle")
    kinds: tuple[Literal["compute", "graphics", "mps"], ...] = ("compute", "graphics", "mps")
    for pid, kind in enumerate(kinds, start=9_000_010):
        node.gpus.add_process(0, pid=pid, name=f"{kind} shown by NVML alone", kind=kind)
    proc = node.files.proc
    shutil.rmtree(proc / f"{first}")
    shutil.rmtree(proc / f"{first + 1}/fd")
    (proc / f"{first + 2}/cmdline").unlink()
    (proc / f"{first + 3}/stat").write_text("9000004 (he) Z 1 " + "0 " * 17 + "100 0")
    (proc / f"{first + 4}/stat").write_text("")
    (proc / f"{first + 1}/fd").write_text("no directory")
    for pid in range(9_000_010, 9_000_013):
        shutil.rmtree(proc / f"{pid}")
    (proc / "9999999").mkdir()
    found = holders(node, plan(node, "7g.80gb"))
    assert [each.pid for each in found] == [first + 5, 9_000_010, 9_000_011, 9_000_012]
    assert found[1].started is None
    assert "pid 9000012 (mps shown by NVML alone) holds GPU 0" in in_words(found)
    shutil.rmtree(proc)
    assert len(holders(node, plan(node, "7g.80gb"))) == 3


# Real processes with real device files: /dev/null and /dev/zero play the capability nodes, /dev/full the GPU.

GPU = GpuIdentity(0, "GPU-0", "00000000:07:00.0", "NVIDIA H100 80GB HBM3", 0, 0, True)
USAGE = (GpuUsage(GPU, minor=7, persistence=None, passthrough=False, processes=()),)
ONE_G = GpuInstance(2, MigProfile.parse("1g.10gb"), 19, Placement(3, 1), (ComputeInstance(0, 1, None),))
INSTANCE, WHOLE = Stake(GPU, ONE_G), Stake(GPU)


@pytest.fixture
def real(tmp_path: Path) -> HostFiles:
    """A /proc in which the driver has the numbers of the kernel's memory devices."""
    (tmp_path / "driver/nvidia-caps").mkdir(parents=True)
    (tmp_path / "devices").write_text("Character devices:\n  1 nvidia\n  1 nvidia-caps\n\nBlock devices:\n")
    minors = "config 1\nmonitor 2\ngpu7/gi2/access 3\ngpu7/gi2/ci0/access 5\n"
    (tmp_path / "driver/nvidia-caps/mig-minors").write_text(minors)
    (tmp_path / "stat").write_text(Path("/proc/stat").read_text())
    return HostFiles(tmp_path, tmp_path / "dev", tmp_path / "sys")


@pytest.fixture
def start(real: HostFiles) -> Iterator[Callable[..., int]]:
    """Run a process that has these files open, and show it in that /proc."""
    children: list[subprocess.Popen[str]] = []

    def run(*paths: Path | str) -> int:
        program = "import sys; files = [open(p) for p in sys.argv[1:]]; print('open'); sys.stdin.read()"
        child = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        (real.proc / str(child.pid)).symlink_to(f"/proc/{child.pid}")
        return child.pid

    yield run
    for child in children:
        child.kill()
        child.communicate()


def test_open_devices_are_told_by_number_wherever_their_node_lies(
    real: HostFiles, start: Callable[..., int], tmp_path: Path
) -> None:
    elsewhere = tmp_path / "in-a-container"
    paths = [Path("/dev/zero")]
    try:
        os.mknod(elsewhere, 0o20600, os.makedev(1, 5))
    except PermissionError:
        pass
    else:
        paths.append(elsewhere)
    (real.proc / "self").symlink_to("1")
    holding = [start(path) for path in paths]
    display = start("/dev/full", tmp_path / "stat")
    found = find_holders([INSTANCE], USAGE, real)
    assert [each.pid for each in found] == sorted(holding)
    assert all(each.holds == (INSTANCE,) and each.command.startswith(sys.executable) for each in found)
    started = found[0].started
    assert started is not None
    assert abs(started.timestamp() - time.time()) < 60
    assert [each.pid for each in find_holders([WHOLE], USAGE, real)] == [display]


def test_a_node_that_was_deleted_still_counts(
    real: HostFiles, start: Callable[..., int], tmp_path: Path
) -> None:
    node = tmp_path / "node"
    try:
        os.mknod(node, 0o20600, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("device nodes cannot be made here")
    (real.proc / "self").symlink_to("1")
    pid = start(node)
    node.unlink()
    assert [each.pid for each in find_holders([INSTANCE], USAGE, real)] == [pid]


def test_we_and_the_processes_that_we_started_never_count(real: HostFiles, start: Callable[..., int]) -> None:
    start("/dev/zero")
    (real.proc / str(os.getpid())).symlink_to(f"/proc/{os.getpid()}")
    with open("/dev/zero"):
        assert find_holders([INSTANCE], USAGE, real) == ()
        (real.proc / "self").symlink_to("1")
        assert len(find_holders([INSTANCE], USAGE, real)) == 2


def test_the_wait_ends_when_the_last_holder_ends(real: HostFiles, start: Callable[..., int]) -> None:
    (real.proc / "self").symlink_to("1")
    pid = start("/dev/zero")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            os.kill(pid, 9)

    wait_until_free(lambda: find_holders([INSTANCE], USAGE, real), 60, pause=pause)
    assert pauses[:3] == sorted(pauses[:3])
    assert pauses[0] < pauses[2]


def test_a_window_that_closes_names_everybody(real: HostFiles, start: Callable[..., int]) -> None:
    (real.proc / "self").symlink_to("1")
    pid = start("/dev/zero")
    with pytest.raises(MigManagerError) as refused:
        wait_until_free(lambda: find_holders([INSTANCE], USAGE, real), 0.15)
    assert refused.value.reason is Reason.GPU_IN_USE
    assert "What has to change is in use for 0.15 s: pid" in refused.value.message
    assert f"pid {pid} ({sys.executable} -c" in refused.value.message
    assert "holds 1g.10gb at 3 on GPU 0" in refused.value.message


def test_what_pauses_can_end_the_wait(real: HostFiles, start: Callable[..., int]) -> None:
    (real.proc / "self").symlink_to("1")
    start("/dev/zero")

    def stop(seconds: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        wait_until_free(lambda: find_holders([INSTANCE], USAGE, real), 60, pause=stop)
