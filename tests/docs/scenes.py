"""What there is when the commands of a section are typed: files, GPUs, Nodes, pods; what a daemon does meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import yaml

from mig_manager.cluster.leases import ROLE_LABEL, Role, Sightings
from mig_manager.cluster.node import NodeChange
from mig_manager.cluster.queue import Scene as Queue
from mig_manager.daemon.status import CONFIG_LABEL, Phase
from mig_manager.daemon.way import EVICTED
from mig_manager.errors import Reason
from mig_manager.simulation.resources import DAEMON_SETS, EVENTS, LEASES, NAMESPACES, PODS
from tests.cli.kubectl.cluster import inventory_of
from tests.cli.kubectl.snapshots import daemon, plugin
from tests.docs.shell import CTRL_C, GPUS
from tests.docs.stage import LAYOUTS, Scene, ago

SMALL, MIDDLE, LARGE = (f"nvidia.com/mig-{name}" for name in ("1g.10gb", "2g.20gb", "3g.40gb"))
DAEMON = "mig-manager-x7k2p"
NAMED = {"NAMESPACE": "mig-manager", "DAEMON_POD": DAEMON, "NODE": "gpu-1"}
"""What a reader puts in the place of words in capitals."""
EIGHT = "8xA100-SXM4-80GB"
WHOLE = {"devices": "all", "mig-enabled": True, "mig-devices": {"7g.80gb": 1}}


def installed(scene: Scene, *nodes: str) -> None:
    """The layouts, and on these nodes a daemon and a device plugin."""
    scene.put(NAMESPACES, "gpu-operator", None)
    scene.put(NAMESPACES, "mig-manager", None)
    scene.cluster.add_config_map("mig-manager", "mig-manager-layouts", {"config.yaml": LAYOUTS})
    labels = {"app.kubernetes.io/name": "mig-manager"}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}}
    owner = scene.put(DAEMON_SETS, "mig-manager", spec=spec)
    for name in nodes:
        ours, theirs = daemon(name), plugin(on=name)
        ours["metadata"]["name"] = DAEMON if name == "gpu-1" else f"mig-manager-{name}"
        ours["metadata"]["ownerReferences"][0] |= {"name": "mig-manager", "uid": owner["metadata"]["uid"]}
        theirs["metadata"]["name"] += f"-{name}"
        for each in (ours, theirs):
            scene.cluster.server.store.create(PODS, each)


def fleet(scene: Scene) -> None:
    """Nodes that have a layout, one with a pod that uses it, a pod that waits, and an Event."""
    names = ("gpu-1", "gpu-2", "gpu-9")
    installed(scene, *names)
    for name in names:
        scene.node(name)
    scene.cluster.add_pod("inference-1", "gpu-1", {SMALL: 1}, namespace="ml")
    scene.cluster.add_pod("trainer", None, {LARGE: 1}, namespace="ml")
    told = {"kind": "Pod", "namespace": "ml", "name": "inference-0"}
    event = {"type": "Normal", "reason": EVICTED, "message": "evicted", "involvedObject": told}
    scene.put(EVENTS, "inference-0.1", "ml", **event)


def nobody_asked(scene: Scene) -> None:
    """A node without a layout."""
    installed(scene, "gpu-1")
    scene.node("gpu-1", layout=None)


def simulated(scene: Scene) -> None:
    """The node of the demo, which takes up what it is asked for."""
    scene.node("gpu-node-1", layout="all-disabled")
    scene.cue("node/gpu-node-1 asked for all-1g.10gb", lambda: scene.has("gpu-node-1"))


def asked_for(scene: Scene) -> None:
    """A node that has what it will be asked for, and one whose daemon goes to work on it."""
    scene.node("gpu-1", EIGHT)
    scene.node("gpu-2", EIGHT, layout="all-balanced")
    pods = [f"training-{number}" for number in range(5)]
    for name in pods:
        scene.cluster.add_pod(name, "gpu-1", {SMALL: 1}, namespace="ml")
    run = {"gpus": tuple(range(8)), "leaving": tuple(f"ml/{name}" for name in pods)}
    scene.cue("gpu-2 has all-balanced already", lambda: scene.says("gpu-1", Phase.DRAINING, **run))
    scene.cue("5 of 5 pods left", lambda: scene.remove(PODS, "ml", *pods))
    scene.cue("0 of 5 pods left", lambda: scene.says("gpu-1", Phase.APPLYING, leaving=()))
    scene.cue("Applying", lambda: scene.says("gpu-1", Phase.RESUMING_OPERANDS))
    scene.cue("ResumingOperands", lambda: scene.has("gpu-1"))


def mixed(scene: Scene) -> None:
    """A node that has a layout of the ConfigMap."""
    installed(scene)
    scene.node("gpu-1", layout="mixed")


def shared_out(scene: Scene) -> None:
    """A node some of whose devices are in use."""
    scene.node("gpu-1", layout="all-balanced")
    scene.cluster.add_pod("one", "gpu-1", {SMALL: 1}, namespace="ml")
    scene.cluster.add_pod("both", "gpu-1", {LARGE: 2}, namespace="ml")


def held_up(scene: Scene) -> None:
    """A node with pods that cannot be evicted."""
    installed(scene, "gpu-1")
    scene.node("gpu-1", "1xA100-SXM4-80GB", layout="all-balanced")
    scene.cluster.add_pod("notebook", "gpu-1", {SMALL: 2}, namespace="ml", owner=None)
    scene.cluster.add_pod("inference", "gpu-1", {MIDDLE: 1}, namespace="ml", labels={"app": "inference"})
    scene.cluster.add_budget("inference", {"app": "inference"}, 0, "ml")


def waiting_pod(scene: Scene) -> None:
    """The demo, after its first act."""
    installed(scene)
    scene.node("gpu-node-1")
    for name in ("inference-905e14f419-9rt5x", "inference-905e14f419-qj785"):
        scene.cluster.add_pod(name, "gpu-node-1", {SMALL: 1}, namespace="ml")
    scene.cluster.add_pod("finetune-21b9228e19-wg8ls", None, {LARGE: 1}, namespace="ml")
    message = f"0/1 nodes are available: 1 Insufficient {LARGE}."
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    scene.change(PODS, "ml", "finetune-21b9228e19-wg8ls", lambda pod: pod["status"].update(conditions=[said]))


def misspelt(scene: Scene) -> None:
    """An installation in order, but for a label."""
    installed(scene, "gpu-1", "gpu-2")
    driver = {"nvidia.com/cuda.driver-version.full": "580.95.05"}
    scene.node("gpu-1", labels=driver)
    scene.node("gpu-2", labels=driver)
    scene.cluster.change_node("gpu-1", NodeChange(labels={CONFIG_LABEL: "all-1g.10g"}))
    scene.says("gpu-1", Phase.VALIDATING, reason=Reason.UNKNOWN_LAYOUT, message="there is no such layout")


def waiting_for_a_slot(scene: Scene) -> None:
    """A node that others keep waiting, in the words of the queue."""
    fleet(scene)
    holders = {Role.SLOT: (2, 3, 4, 5, 7), Role.PLACE: (6, 8, 10, 11, 9)}
    leases = [
        scene.put(
            LEASES,
            f"{role}-{at}",
            metadata={"labels": {ROLE_LABEL: role}},
            spec={"holderIdentity": f"gpu-{number}"},
        )
        for role, numbers in holders.items()
        for at, number in enumerate(numbers)
    ]
    queue = Queue.of(map(Sightings().read, leases), "gpu-9", [f"slot-{at}" for at in range(5)])
    scene.says("gpu-9", Phase.WAITING_FOR_SLOT, message=f"waiting for a slot: {queue}")


def new_cluster(scene: Scene) -> None:
    """Nothing of this project yet, but the pods that are going to be there."""
    fleet(scene)
    scene.remove(NAMESPACES, None, "mig-manager")


def installed_by_manifest(scene: Scene) -> None:
    """What deploy/mig-manager.yaml makes, and a node."""
    ended = scene.shell.run("kubectl apply -f deploy/mig-manager.yaml")
    assert ended.code == 0, ended.err
    scene.node("gpu-1")


def empty(scene: Scene) -> None:
    """A cluster without any of it."""
    scene.put(NAMESPACES, "gpu-operator", None)


def manifests(scene: Scene) -> None:
    """A repository of manifests."""
    fleet(scene)
    scene.file("values.yaml", yaml.safe_dump({"layouts": yaml.safe_load(LAYOUTS)}))
    scene.file("clusters/prod/layouts.yaml", LAYOUTS)
    generator = [{"name": "mig-manager-layouts", "files": ["config.yaml=layouts.yaml"]}]
    scene.file("clusters/prod/kustomization.yaml", yaml.safe_dump({"configMapGenerator": generator}))


def for_other_boards(scene: Scene) -> None:
    """A layout file whose layout does not fit the nodes that it is held against."""
    layouts = {"version": "v1", "mig-configs": {"training": [WHOLE]}}
    scene.file("layouts.yaml", yaml.safe_dump(layouts, sort_keys=False))


def small_gpus(scene: Scene) -> None:
    """Two GPUs in a file, cut into the smallest instances."""
    scene.gpus("2xA100-SXM4-80GB", "all-1g.10gb", "gpus.json")


def this_machine(scene: Scene) -> None:
    """A machine with GPUs, cut into the smallest instances."""
    scene.gpus("2xA100-SXM4-80GB", "all-1g.10gb", GPUS)


def empty_gpu(scene: Scene) -> None:
    """A machine with one GPU that holds nothing."""
    scene.gpus("1xA100-SXM4-80GB", "all-enabled", GPUS)


def no_gpus(scene: Scene) -> None:
    """Nothing: the commands make GPUs of their own."""


def web(scene: Scene) -> None:
    """Somebody who looks at a page, and then ends it."""
    scene.node("gpu-1")
    scene.cue("Ctrl-C ends it", None)


def followed(scene: Scene) -> None:
    """The fleet, with nodes that take up what they are asked for, and somebody who looks on for a moment."""
    fleet(scene)
    for name in ("gpu-1", "gpu-2"):
        scene.cluster.change_node(name, NodeChange(labels={CONFIG_LABEL: "all-balanced"}))
        scene.has(name)
    scene.cue("node/gpu-1 asked for all-1g.10gb", lambda: scene.has("gpu-1"))
    scene.cue("node/gpu-2 asked for all-1g.10gb", lambda: scene.has("gpu-2"))
    scene.cue(r"NODE .*\n.*gpu-1 .*\n", None)
    scene.cue("Ctrl-C ends it", None)


def watched(scene: Scene) -> None:
    """The fleet, with somebody who looks on until a node is there."""
    fleet(scene)
    scene.cue("NAME .*\ngpu-1 .*\n", None)


def under_way(scene: Scene) -> None:
    """A node of which devices are in use, and one that waits for pods to leave."""
    scene.node("gpu-1", EIGHT)
    scene.node("gpu-2", EIGHT)
    scene.cluster.say("gpu-1", lambda said: replace(said, finishedAt=ago(hours=3, minutes=12)))
    scene.cluster.add_pod("inference", "gpu-1", {SMALL: 41})
    scene.cluster.change_node("gpu-2", NodeChange(labels={CONFIG_LABEL: "all-balanced"}))
    scene.cluster.journal("gpu-2", inventory_of(EIGHT))
    leaving = tuple(f"ml/training-{number}" for number in range(1, 6))
    scene.says("gpu-2", Phase.DRAINING, gpus=tuple(range(8)), leaving=leaving)
    for number in (1, 2):
        scene.cluster.add_pod(f"training-{number}", "gpu-2", {SMALL: 1}, namespace="ml")


SCENES: Mapping[tuple[str, str], Callable[[Scene], None]] = {
    ("README.md", "Will this layout work?"): no_gpus,
    ("README.md", "From outside of the nodes"): followed,
    ("cli.md", "Will this layout work?"): small_gpus,
    ("cli.md", "For scripts"): small_gpus,
    ("cli.md", "From a node to a laptop"): this_machine,
    ("cli.md", "Applying by hand"): this_machine,
    ("cli.md", "Checkpoints"): this_machine,
    ("cli.md", "By hand"): empty_gpu,
    ("cli.md", "A layout file to start from"): this_machine,
    ("cli.md", "Simulated GPUs"): no_gpus,
    ("fleet.md", "At most so many at once"): waiting_for_a_slot,
    ("install.md", "Helm"): new_cluster,
    ("install.md", "Without Helm"): empty,
    ("install.md", "Which nodes"): nobody_asked,
    ("install.md", "Removing it"): installed_by_manifest,
    ("migration.md", "From nvidia-mig-parted under systemd"): nobody_asked,
    ("kubectl-mig.md", "kubectl mig"): under_way,
    ("kubectl-mig.md", "Install it"): simulated,
    ("kubectl-mig.md", "layouts"): mixed,
    ("kubectl-mig.md", "set"): asked_for,
    ("kubectl-mig.md", "show"): shared_out,
    ("kubectl-mig.md", "plan"): held_up,
    ("kubectl-mig.md", "web"): web,
    ("kubectl-mig.md", "explain"): waiting_pod,
    ("kubectl-mig.md", "doctor"): misspelt,
    ("quick-start.md", "1. Try the layout"): no_gpus,
    ("quick-start.md", "2. Install"): new_cluster,
    ("quick-start.md", "3. Ask for it"): watched,
    ("validate.md", "Manifests"): manifests,
    ("validate.md", "For machines"): for_other_boards,
}
"""By page and section; everywhere else it is `fleet`."""
NOT_RUN: Mapping[str, str] = {
    "make ": "it sets an environment up from a package index, and takes minutes",
    ".venv/bin/": "it takes minutes",
    "MIG_MANAGER_E2E_KUBECONFIG=": "it needs a real control plane",
    "docker ": "it needs a container engine, and a registry",
    "pip install": "it needs a package index",
    "pipx install": "it needs a package index",
    "NODE_NAME=": "it needs root and the NVIDIA driver",
    "systemctl ": "it changes units of this machine",
    "mig-manager demo": "it takes half a minute, or until Ctrl-C; tests/cli/test_demo.py runs it",
    "helm upgrade": "the chart is of others, and comes from the internet",
    "helm uninstall": "nothing is installed by the engine; tests/deploy/test_leaving.py runs its Job",
    "kubectl get --raw": "the simulated API server has no way to pods; tests/daemon/test_http.py asks a daemon",
}
"""Commands that cannot be run here, by how they begin, and why."""
ENDS: Mapping[tuple[str, str], int] = {
    ("README.md", "kubectl mig status -w"): CTRL_C,
    ("kubectl-mig.md", "kubectl mig status"): 1,
    ("kubectl-mig.md", "kubectl mig doctor"): 1,
    (
        "install.md",
        "helm install mig-manager deploy/helm/mig-manager -n mig-manager --set settings.drainMode=evct",
    ): 1,
    ("validate.md", "mig-manager validate layouts.yaml --gpus 8xH200 --format json"): 2,
    ("quick-start.md", "kubectl get node gpu-1 -L nvidia.com/mig.config.state --watch"): CTRL_C,
}
"""Exit codes that are not 0, by page and command."""
