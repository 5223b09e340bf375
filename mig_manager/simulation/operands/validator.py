"""The GPU Operator's validator: whether GPUs can be used on the node."""

from __future__ import annotations

from mig_manager.simulation.node.containers import Run
from mig_manager.simulation.objects import Object
from mig_manager.simulation.operands import NAMESPACE
from mig_manager.simulation.operands.deviceplugin import GPU_RESOURCE, MIG_RESOURCE_PREFIX
from mig_manager.simulation.operands.manifests import CLUSTER_POLICY, VALIDATOR_IMAGE
from mig_manager.simulation.podspec import is_finished
from mig_manager.simulation.resources import NODES, PODS

_TRIES = 30


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


def _replace_cuda_pod(run: Run) -> None:
    store = run.services.store
    for pod in _cuda_pods(run):
        store.delete(PODS, NAMESPACE, pod["metadata"]["name"])
    container = {"name": "cuda-validation", "image": VALIDATOR_IMAGE, "command": ["vectorAdd"]}
    store.create(
        PODS,
        {
            "metadata": {
                "generateName": "nvidia-cuda-validator-",
                "namespace": NAMESPACE,
                "labels": {"app": "nvidia-cuda-validator"},
                "ownerReferences": [CLUSTER_POLICY],
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
