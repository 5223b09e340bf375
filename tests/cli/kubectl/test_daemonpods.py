"""What a pod of the daemon says of itself."""

from __future__ import annotations

import pytest

from mig_manager.cli.kubectl.checking.daemonpods import DaemonPod
from tests.cli.kubectl.snapshots import daemon


@pytest.mark.parametrize(
    ("image", "version"),
    [
        ("registry:5000/gpu/mig-manager:v0.1.0", "0.1.0"),
        ("mig-manager:0.1.0@sha256:0123", "0.1.0"),
        ("registry:5000/gpu/mig-manager@sha256:0123", ""),
    ],
)
def test_the_version_of_a_daemon_is_the_tag_of_its_image(image: str, version: str) -> None:
    assert DaemonPod.from_json(daemon(image=image)).version == version


def test_the_settings_of_a_daemon_are_those_of_its_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIG_MANAGER_DRAIN_MODE", "off")
    monkeypatch.setenv("CONFIG_FILE", "/mine")
    found = DaemonPod.from_json(daemon(env={"MIG_MANAGER_MAX_PARALLEL_NODES": "2"})).settings()
    assert found is not None
    assert (found.drain_mode, found.config_file, found.max_parallel_nodes) == ("evict", None, 2)
    assert (found.node_name, found.layouts_namespace) == ("gpu-1", "mig-manager")
    assert DaemonPod.from_json(daemon(env={"MIG_MANAGER_DRAIN_MODE": "perhaps"})).settings() is None
