"""What the GPU Operator runs on a GPU node: its DaemonSets, and what their containers do."""

from __future__ import annotations

from mig_manager.simulation.containers import Programs, Run
from mig_manager.simulation.deviceplugin import GPU_RESOURCE, MIG_RESOURCE_PREFIX, DevicePlugin, Strategy
from mig_manager.simulation.featurediscovery import FeatureDiscovery
from mig_manager.simulation.objects import Object
from mig_manager.simulation.podspec import is_finished
from mig_manager.simulation.resources import NODES, PODS

NAMESPACE = "gpu-operator"
DEPLOY_PREFIX = "nvidia.com/gpu.deploy."
_DEPLOYED = (
    "container-toolkit",
    "dcgm",
    "dcgm-exporter",
    "device-plugin",
    "driver",
    "gpu-feature-discovery",
    "node-status-exporter",
    "operator-validator",
)

_CLUSTER_POLICY = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "name": "cluster-policy",
    "uid": "c0ffee00-0000-4000-8000-000000000000",
    "controller": True,
    "blockOwnerDeletion": True,
}
_VALIDATOR_IMAGE = "nvcr.io/nvidia/gpu-operator:v26.7.0"
_TRIES = 30


def node_labels(*, mig_capable: bool) -> dict[str, str]:
    """What node feature discovery and the operator label a node with that has GPUs for containers."""
    deployed = (*_DEPLOYED, "mig-manager") if mig_capable else _DEPLOYED
    return {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gpu.present": "true",
        **{DEPLOY_PREFIX + name: "true" for name in deployed},
    }


def daemon_sets(strategy: Strategy, *, dcgm: bool = False) -> list[Object]:
    """The operator's DaemonSets that use GPUs; `dcgm`: with a host engine in a pod of its own."""
    environment = [{"name": "MIG_STRATEGY", "value": strategy}]
    plugin = "nvcr.io/nvidia/k8s-device-plugin:v0.20.0"
    found = [
        _daemon_set(
            "nvidia-device-plugin-daemonset", "device-plugin", plugin, "nvidia-device-plugin", environment
        ),
        _daemon_set(
            "gpu-feature-discovery", "gpu-feature-discovery", plugin, "gpu-feature-discovery", environment
        ),
        _daemon_set(
            "nvidia-dcgm-exporter",
            "dcgm-exporter",
            "nvcr.io/nvidia/k8s/dcgm-exporter:4.4.1-4.5.2-distroless",
            "dcgm-exporter",
            [],
        ),
        _validator(environment),
    ]
    if dcgm:
        found.append(
            _daemon_set("nvidia-dcgm", "dcgm", "nvcr.io/nvidia/cloud-native/dcgm:4.4.1", "nv-hostengine", [])
        )
    return found


class Monitor:
    """Keeps every GPU open for as long as it runs, as DCGM does."""

    def __init__(self) -> None:
        self._run: Run | None = None
        self._held: tuple[int, ...] = ()

    def start(self, run: Run) -> None:
        """Open the GPUs."""
        self._run = run
        self._held = (run.services.hardware.hold(run.name),)
        run.ready()

    def stop(self) -> None:
        """Close them."""
        assert self._run is not None
        self._run.services.hardware.close(self._held)


class Validator:
    """One step of the operator's validation, by the environment variable COMPONENT."""

    def start(self, run: Run) -> None:
        """Begin."""
        match run.environment["COMPONENT"]:
            case "cuda":
                _replace_cuda_pod(run)
                self._wait(run, _TRIES)
            case "plugin":
                self._wait(run, _TRIES)
            case _:
                run.exit(0)

    def stop(self) -> None:
        """Nothing to put away."""

    def _wait(self, run: Run, tries: int) -> None:
        """Look every now and then, as the real one does (every 5 s), and give up in the end."""
        good = _cuda_pod_done(run) if run.environment["COMPONENT"] == "cuda" else _node_has_gpus(run)
        if good:
            run.exit(0)
        elif tries == 0:
            run.exit(1, "timed out")
        else:
            run.after(run.services.delays.validation, lambda: self._wait(run, tries - 1))


PROGRAMS: Programs = {
    "nvidia-device-plugin": DevicePlugin,
    "gpu-feature-discovery": FeatureDiscovery,
    "dcgm-exporter": Monitor,
    "nv-hostengine": Monitor,
    "nvidia-validator": Validator,
}


def _daemon_set(name: str, deploy: str, image: str, command: str, environment: list[Object]) -> Object:
    container = {"name": name.removesuffix("-daemonset"), "image": image, "command": [command]}
    spec = {
        "initContainers": [_validation("toolkit", [])],
        "containers": [{**container, "env": environment, "securityContext": {"privileged": True}}],
    }
    return _shaped(name, deploy, spec)


def _validator(environment: list[Object]) -> Object:
    steps = [_validation(step, environment) for step in ("driver", "toolkit", "cuda", "plugin")]
    container = {
        "name": "nvidia-operator-validator",
        "image": _VALIDATOR_IMAGE,
        "command": ["sh", "-c"],
        "args": ["echo all validations are successful; while true; do sleep 86400; done"],
    }
    return _shaped(
        "nvidia-operator-validator",
        "operator-validator",
        {"initContainers": steps, "containers": [container]},
    )


def _validation(component: str, environment: list[Object]) -> Object:
    return {
        "name": f"{component}-validation",
        "image": _VALIDATOR_IMAGE,
        "command": ["nvidia-validator"],
        "env": [{"name": "COMPONENT", "value": component}, *environment],
    }


def _shaped(name: str, deploy: str, spec: Object) -> Object:
    labels = {"app": name}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {**labels, "app.kubernetes.io/part-of": "gpu-operator"},
            "ownerReferences": [_CLUSTER_POLICY],
        },
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": {**labels, "app.kubernetes.io/managed-by": "gpu-operator"}},
                "spec": {
                    **spec,
                    "nodeSelector": {DEPLOY_PREFIX + deploy: "true"},
                    "priorityClassName": "system-node-critical",
                    "runtimeClassName": "nvidia",
                    "serviceAccountName": name,
                    "tolerations": [{"key": GPU_RESOURCE, "operator": "Exists", "effect": "NoSchedule"}],
                },
            },
        },
    }


def _replace_cuda_pod(run: Run) -> None:
    store = run.services.store
    for pod in _cuda_pods(run):
        store.delete(PODS, NAMESPACE, pod["metadata"]["name"])
    container = {"name": "cuda-validation", "image": _VALIDATOR_IMAGE, "command": ["vectorAdd"]}
    store.create(
        PODS,
        {
            "metadata": {
                "generateName": "nvidia-cuda-validator-",
                "namespace": NAMESPACE,
                "labels": {"app": "nvidia-cuda-validator"},
                "ownerReferences": [_CLUSTER_POLICY],
            },
            "spec": {
                "nodeName": run.services.name,
                "restartPolicy": "OnFailure",
                "runtimeClassName": "nvidia",
                "initContainers": [container],
                "containers": [{**container, "name": "nvidia-cuda-validator", "command": ["true"]}],
                "tolerations": [{"operator": "Exists"}],
            },
        },
    )


def _cuda_pods(run: Run) -> list[Object]:
    return [
        pod
        for pod in run.services.store.snapshot(PODS, NAMESPACE)[0]
        if pod["metadata"].get("labels", {}).get("app") == "nvidia-cuda-validator"
        and pod["spec"].get("nodeName") == run.services.name
    ]


def _cuda_pod_done(run: Run) -> bool:
    return any(is_finished(pod) for pod in _cuda_pods(run))


def _node_has_gpus(run: Run) -> bool:
    node = run.services.store.get(NODES, None, run.services.name)
    allocatable = (node or {}).get("status", {}).get("allocatable") or {}
    return any(
        int(amount) > 0
        for resource, amount in allocatable.items()
        if resource == GPU_RESOURCE or resource.startswith(MIG_RESOURCE_PREFIX)
    )
