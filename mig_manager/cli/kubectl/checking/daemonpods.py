"""Which pods are the daemon's, ours or NVIDIA's, and what they say of themselves."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mig_manager.cluster.objects import JsonObject
from mig_manager.daemon.settings import Settings, SettingsError, environment_name, load_settings

_OPERATOR_APP = "nvidia-mig-manager"
"""The label `app` of the GPU Operator's DaemonSet, whichever image it runs."""
_NVIDIAS_IMAGES = ("k8s-mig-manager", "mig-parted")


@dataclass(frozen=True, slots=True, order=True)
class Account:
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        """Its user name for the API server."""
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class DaemonPod:
    """A pod of the daemon."""

    namespace: str
    name: str
    node: str
    account: Account
    image: str
    ready: bool
    restarts: int
    waiting: str = ""
    """Why its container does not run, such as `CrashLoopBackOff`; empty where it does."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables with literal values."""
    labelled_version: str = ""

    @classmethod
    def from_json(cls, pod: JsonObject) -> DaemonPod:
        """From a Pod."""
        meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        container = (spec.get("containers") or [{}])[0]
        told: JsonObject = next(
            (
                each
                for each in status.get("containerStatuses") or ()
                if each.get("name") == container.get("name")
            ),
            {},
        )
        conditions = status.get("conditions") or ()
        waiting = ((told.get("state") or {}).get("waiting") or {}).get("reason") or ""
        labels = meta.get("labels") or {}
        return cls(
            namespace=meta.get("namespace", ""),
            name=meta["name"],
            node=spec.get("nodeName") or "",
            account=Account(meta.get("namespace", ""), spec.get("serviceAccountName") or "default"),
            image=container.get("image", ""),
            ready=any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions),
            restarts=int(told.get("restartCount") or 0),
            waiting=waiting,
            environment={
                each["name"]: each["value"] for each in container.get("env") or () if each.get("value")
            },
            labelled_version=labels.get("app.kubernetes.io/version", ""),
        )

    @property
    def version(self) -> str:
        """The tag of its image without a leading `v`, else the version in its labels; empty where neither tells."""
        tail = self.image.partition("@")[0].rpartition("/")[2]
        return (tail.partition(":")[2] or self.labelled_version).removeprefix("v")

    def settings(self) -> Settings | None:
        """What it works by, as far as its variables tell; None where they make no sense."""
        given = {}
        for name, info in Settings.model_fields.items():
            # Every one, so that the environment of this process does not count.
            given[name] = self.environment.get(
                environment_name(name), info.get_default(call_default_factory=True)
            )
        given |= {"node_name": self.node, "pod_namespace": self.namespace}
        try:
            return load_settings(**given)
        except SettingsError:
            return None

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def daemon_pods(pods: Iterable[JsonObject]) -> tuple[DaemonPod, ...]:
    """Ours."""
    return tuple(DaemonPod.from_json(each) for each in pods if _is_ours(each))


def nvidias_managers(pods: Iterable[JsonObject]) -> tuple[str, ...]:
    """Pods of NVIDIA's own mig-manager, as `namespace/name`."""
    return tuple(
        f"{each['metadata'].get('namespace', '')}/{each['metadata']['name']}"
        for each in pods
        if _is_nvidias(each)
    )


def _is_ours(pod: JsonObject) -> bool:
    labels = pod["metadata"].get("labels") or {}
    containers = (pod.get("spec") or {}).get("containers") or ()
    programs = {word for each in containers for word in each.get("command") or ()}
    charted = labels.get("app.kubernetes.io/name") == "mig-manager" or any(
        each.get("name") == "mig-manager" and "nvidia-mig-manager" in programs for each in containers
    )
    by_operator = labels.get("app") == _OPERATOR_APP and not _has_nvidias_image(pod)
    return (charted and _is_daemon(pod)) or by_operator


def _is_daemon(pod: JsonObject) -> bool:
    """Whether a DaemonSet has made it: the chart has a job with the same labels."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return any(each.get("kind") == "DaemonSet" for each in owners)


def _is_nvidias(pod: JsonObject) -> bool:
    return (pod["metadata"].get("labels") or {}).get("app") == _OPERATOR_APP and _has_nvidias_image(pod)


def _has_nvidias_image(pod: JsonObject) -> bool:
    images = [each.get("image", "") for each in (pod.get("spec") or {}).get("containers") or ()]
    return any(name in image for image in images for name in _NVIDIAS_IMAGES)
