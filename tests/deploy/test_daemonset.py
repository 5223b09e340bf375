"""The daemon with the environment that the chart's DaemonSet gives to it, on a simulated node."""

from __future__ import annotations

from pathlib import Path

from mig_manager.simulation.world import NAMESPACE
from tests.daemon.node import LAYOUTS, OPERATOR, GpuNode
from tests.daemon.pages import page
from tests.deploy.charts import container, daemon_set, downward, environment

SIMULATED = ("NVML_LOADER", "NVML_ARGUMENT", "RESET_COMMAND", "PROC_ROOT", "SYS_ROOT")
"""What stands for hardware in the simulation."""


def test_the_daemon_works_with_what_the_chart_gives_to_it(tmp_path: Path) -> None:
    values = {
        "layouts": LAYOUTS,
        "settings": {"operandNamespace": OPERATOR, "migStrategy": "mixed", "listen": "0"},
        "operands": {"file": (Path(__file__).parents[2] / "config/operands.yaml").read_text()},
    }
    made = daemon_set(values, NAMESPACE)
    with GpuNode(tmp_path) as node:
        files = tmp_path / "files"
        files.mkdir()
        (files / "operands.yaml").write_text(values["operands"]["file"])  # type: ignore[index]
        simulated = node.cluster.daemon_environment()
        mounts = {each["name"]: each["mountPath"] for each in container(made)["volumeMounts"]}
        places = {
            mounts["files"]: str(files),
            mounts["pod-resources"]: str(node.cluster.pod_resources.socket.parent),
            mounts["host"]: str(node.cluster.host),
        }
        given = {name: _here(value, places) for name, value in environment(made).items()}
        pod = {
            "spec.nodeName": node.cluster.node,
            "metadata.name": "mig-manager-x",
            "metadata.namespace": NAMESPACE,
            "status.podIP": "127.0.0.1",
        }
        given |= {name: pod[path] for name, path in downward(made).items()}
        given |= {
            name: simulated[name] for name in simulated if name.removeprefix("MIG_MANAGER_") in SIMULATED
        }
        given |= {name: simulated[name] for name in ("KUBECONFIG", "DEV_ROOT_CTR_PATH")}
        node.start(**{**dict.fromkeys(simulated, ""), **given})
        status = node.becomes("balanced")
        assert status["origin"] == "file"
        assert node.allocatable == {"mig-1g.10gb": 4, "mig-2g.20gb": 2, "mig-3g.40gb": 2}
        assert node.clients_run
        assert page(node, "/readyz") == (200, "ok\n")
        assert node.terminate() == 0
        assert '"level"' in node.logged() or '"message"' in node.logged()
        assert "no setting" not in node.logged()


def _here(value: str, places: dict[str, str]) -> str:
    """A path in the container as a path on this machine."""
    for there, here in places.items():
        if value == there or value.startswith(f"{there}/"):
            return here + value.removeprefix(there)
    return value
