"""The ground on which a section's commands are typed: a directory, a cluster, and a shell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mig_manager.daemon.layoutsfrom import LayoutsFrom
from mig_manager.daemon.status import CONFIG_LABEL, LAYOUTS_FROM_ANNOTATION, Phase, State
from mig_manager.simulation.objects import Object, Resource
from mig_manager.simulation.resources import RESOURCES
from tests.cli.kubectl.cluster import Cluster
from tests.docs.shell import Shell

LAYOUTS = """\
version: v1
mig-configs:
  all-disabled:
    - devices: all
      mig-enabled: false
  half-and-half:
    - devices: all
      mig-enabled: true
      mig-devices: {3g.40gb: 2}
  mixed:
    - devices: all
      mig-enabled: true
      mig-devices: {1g.10gb: 4, 3g.40gb: 1}
  training:
    - gpu-model: A100-SXM4-80GB
      devices: all
      mig-enabled: true
      mig-devices: {7g.80gb: 1}
"""
_FIRST_NAMESPACES = ("default", "kube-node-lease", "kube-public", "kube-system")


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the commands of a section are typed."""

    cluster: Cluster
    shell: Shell
    made: dict[tuple[str, str], str]
    """Files of simulated GPUs, by the GPUs and their layout."""

    def clear(self) -> None:
        """Take everything out of the cluster."""
        store = self.cluster.server.store
        for kind in RESOURCES:
            for each in store.list(kind)[0]:
                meta = each["metadata"]
                if meta["name"] not in _FIRST_NAMESPACES:
                    store.remove(kind, meta.get("namespace"), meta["name"], meta["uid"])

    def node(self, name: str, gpus: str = "2xA100-SXM4-80GB", **more: Any) -> None:
        """A Node that has a layout, among those of the ConfigMap."""
        source = {
            LAYOUTS_FROM_ANNOTATION: LayoutsFrom("mig-manager/mig-manager-layouts", "config.yaml").to_json()
        }
        labels = {"pool": "inference", **more.pop("labels", {})}
        self.cluster.add_node(name, gpus, own=LAYOUTS, annotations=source, labels=labels, **more)

    def says(self, name: str, phase: Phase, **more: Any) -> None:
        """Let the daemon of a Node say where it stands with what its label asks for; with a reason it has failed."""
        layout = self.cluster.node(name)["metadata"]["labels"][CONFIG_LABEL]
        state = State.SUCCESS if phase is Phase.DONE else State.FAILED if "reason" in more else State.PENDING
        if state is State.PENDING:
            more = {"startedAt": ago(seconds=14), "finishedAt": None, **more}
        self.cluster.say(name, lambda said: replace(said, layout=layout, state=state, phase=phase, **more))

    def has(self, name: str, seconds: int = 24) -> None:
        """Let the run of a Node end well."""
        self.says(name, Phase.DONE, startedAt=ago(seconds=seconds), finishedAt=ago(), leaving=())

    def remove(self, kind: Resource, namespace: str | None, *names: str) -> None:
        """Take objects away."""
        store = self.cluster.server.store
        for name in names:
            found = store.get(kind, namespace, name)
            assert found is not None
            store.remove(kind, namespace, name, found["metadata"]["uid"])

    def change(
        self, kind: Resource, namespace: str | None, name: str, change: Callable[[Object], None]
    ) -> None:
        """Change an object as its owner does."""

        def changed(found: Object) -> Object:
            change(found)
            return found

        self.cluster.server.store.update(kind, namespace, name, changed)

    def file(self, name: str, text: str) -> None:
        """A file in the working directory."""
        path = self.shell.home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def gpus(self, gpus: str, layout: str, file: str) -> None:
        """Simulated GPUs with a layout, made once and then copied."""
        if (gpus, layout) not in self.made:
            ended = self.shell.run(f"mig-manager apply --simulate {gpus} --simulate-state {file} -c {layout}")
            assert ended.code == 0, ended.err
            self.made[gpus, layout] = (self.shell.home / file).read_text()
        self.file(file, self.made[gpus, layout])

    def cue(self, printed: str, act: Callable[[], None] | None) -> None:
        """When that has been printed, let it happen; None is Ctrl-C."""
        self.shell.cues.append((printed, act))

    def put(self, kind: Resource, name: str, namespace: str | None = "mig-manager", **more: Any) -> Object:
        """An object of any kind."""
        meta = {"name": name, **({"namespace": namespace} if namespace else {}), **more.pop("metadata", {})}
        return self.cluster.server.store.create(kind, {"metadata": meta, **more})


def ago(**length: int) -> str:
    """A time that long ago, as in annotations."""
    return (datetime.now(UTC) - timedelta(**length)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
