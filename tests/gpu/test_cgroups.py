"""Whose a process is, from every form of cgroup path that kubelets and runtimes make."""

from __future__ import annotations

import pytest

from mig_manager.gpu.cgroups import Owner, owner

UID = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
SNAKE = UID.replace("-", "_")
STATIC = "0123456789abcdef0123456789abcdef"
CID = "f" * 32 + "0123456789abcdef" * 2
OTHER = "ab" * 32

POD = Owner(pod_uid=UID, container=CID)


@pytest.mark.parametrize(
    ("cgroup", "expected"),
    [
        # v1 has a line a controller, cgroupfs driver: containerd, Docker and CRI-O.
        (f"11:memory:/kubepods/burstable/pod{UID}/{CID}\n1:name=systemd:/\n", POD),
        (f"4:cpu,cpuacct:/kubepods/pod{UID}/{CID}\n", POD),
        (f"4:cpu:/kubepods/besteffort/pod{UID}/crio-{CID}\n", POD),
        (f"12:pids:/docker/{OTHER}/kubelet/kubepods/burstable/pod{UID}/{CID}\n", POD),
        # The systemd driver.
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SNAKE}.slice/"
            f"cri-containerd-{CID}.scope\n",
            POD,
        ),
        (f"0::/kubepods.slice/kubepods-pod{SNAKE}.slice/crio-{CID}.scope/container\n", POD),
        (
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SNAKE}.slice/"
            f"docker-{CID}.scope/init.scope\n",
            POD,
        ),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SNAKE}.slice/{CID}\n", POD),
        # containerd and kubelet that disagree about the driver.
        (
            f"1:name=systemd:/system.slice/containerd.service/kubepods-burstable-pod{SNAKE}.slice:"
            f"cri-containerd:{CID}\n",
            POD,
        ),
        # As seen from inside another cgroup namespace.
        (f"0::/../../kubepods-burstable-pod{SNAKE}.slice/cri-containerd-{CID}.scope\n", POD),
        (f"0::/../cri-containerd-{CID}.scope\n", Owner(container=CID)),
        # A static pod's UID is the hash of its file; a pod without a container is its sandbox's parent.
        (f"0::/kubepods/burstable/pod{STATIC}/{CID}\n", Owner(pod_uid=STATIC, container=CID)),
        (f"0::/kubepods.slice/kubepods-pod{SNAKE}.slice\n", Owner(pod_uid=UID)),
        # No pod.
        (f"12:devices:/docker/{CID}\n", Owner(container=CID)),
        (f"0::/system.slice/docker-{CID}.scope\n", Owner(container=CID)),
        (
            f"0::/machine.slice/libpod-{CID}.scope/container\n",
            Owner(container=CID),
        ),
        ("0::/system.slice/nvidia-dcgm.service\n", Owner(service="nvidia-dcgm.service")),
        (
            "12:pids:/\n1:name=systemd:/system.slice/system-x.slice/x@1.service/sub\n",
            Owner(service="x@1.service"),
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", Owner()),
        ("0::/\n", Owner()),
        ("", Owner()),
        # Look-alikes.
        (f"0::/podcast/{UID}\n", Owner()),
        (f"0::/kubepods/pod{STATIC}0/x\n", Owner()),
    ],
)
def test_the_pod_and_container_are_read_from_every_form(cgroup: str, expected: Owner) -> None:
    assert owner(cgroup) == expected
