"""The GPU Operator's DaemonSets, and the labels with which it chooses nodes for them."""

from __future__ import annotations

from mig_manager.simulation.objects import Object
from mig_manager.simulation.operands import NAMESPACE
from mig_manager.simulation.operands.deviceplugin import GPU_RESOURCE, REPLICAS, Strategy

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

_NOT_WITH_DRA = ("device-plugin", "gpu-feature-discovery", "operator-validator")
CLUSTER_POLICY = {
    "apiVersion": "nvidia.com/v1",
    "kind": "ClusterPolicy",
    "name": "cluster-policy",
    "uid": "c0ffee00-0000-4000-8000-000000000000",
    "controller": True,
    "blockOwnerDeletion": True,
}
DRA_DRIVER = "nvidia-dra-driver"
VALIDATOR_IMAGE = "nvcr.io/nvidia/gpu-operator:v26.7.0"


def node_labels(*, mig_capable: bool, dra: bool = False) -> dict[str, str]:
    """What node feature discovery and the operator label a node with that has GPUs for containers."""
    deployed: tuple[str, ...] = (*_DEPLOYED, "mig-manager") if mig_capable else _DEPLOYED
    if dra:
        deployed = (*(each for each in deployed if each not in _NOT_WITH_DRA), "dra-driver")
    return {
        "feature.node.kubernetes.io/pci-10de.present": "true",
        "nvidia.com/gpu.present": "true",
        **{DEPLOY_PREFIX + name: "true" for name in deployed},
    }


def daemon_sets(
    strategy: Strategy, *, dcgm: bool = False, dra: bool = False, replicas: int = 1
) -> list[Object]:
    """The operator's DaemonSets that use GPUs.

    `dcgm`: with a host engine in a pod of its own; `dra`: NVIDIA's DRA driver in place of device plugin, feature
    discovery and validator, as a GPUCluster has it; `replicas`: as many pods share each device in time.
    """
    environment = [{"name": "MIG_STRATEGY", "value": strategy}]
    if replicas > 1:
        environment.append({"name": REPLICAS, "value": str(replicas)})
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
    if dra:
        found[:] = [each for each in found if each["metadata"]["name"] == "nvidia-dcgm-exporter"]
        image = "registry.k8s.io/dra-driver-nvidia/dra-driver-nvidia-gpu:v0.4.1"
        found.append(_daemon_set(DRA_DRIVER, "dra-driver", image, "gpu-kubelet-plugin", []))
    if dcgm:
        found.append(
            _daemon_set("nvidia-dcgm", "dcgm", "nvcr.io/nvidia/cloud-native/dcgm:4.4.1", "nv-hostengine", [])
        )
    return found


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
        "image": VALIDATOR_IMAGE,
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
        "image": VALIDATOR_IMAGE,
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
            "ownerReferences": [CLUSTER_POLICY],
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
