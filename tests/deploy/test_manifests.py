"""The plain manifests: as fresh as the chart, valid, and each overlay as it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deploy.generate import written
from mig_manager.cluster.objects import Pod
from mig_manager.cluster.operandfile import read_operands
from mig_manager.cluster.operands import pause
from tests.deploy.charts import (
    NEWEST,
    OLDEST,
    Object,
    built,
    check_valid,
    container,
    environment,
    granted,
    of_kind,
    render,
)
from tests.shipped import ROOT, documents, rbac_files

STALE = {"settings": {"removeStaleResources": True}}
OVERLAYS = ("base", "overlays/gpu-operator", "overlays/standalone", "overlays/kubelet-podresources")


def pods_of(daemon_set: Object) -> Pod:
    """A pod that this DaemonSet would make."""
    template = daemon_set["spec"]["template"]
    owner = {"kind": "DaemonSet", "name": daemon_set["metadata"]["name"], "controller": True}
    meta = {**template["metadata"], "name": "a", "uid": "1", "namespace": daemon_set["metadata"]["namespace"]}
    return Pod.from_json(
        {"metadata": {**meta, "ownerReferences": [owner]}, "spec": template["spec"], "status": {}}
    )


def test_what_is_generated_is_up_to_date() -> None:
    stale = [str(path) for path, text in written() if not path.is_file() or path.read_text() != text]
    assert stale == [], "run: make manifests"


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_is_built_and_valid(name: str) -> None:
    objects = built(name)
    for version in (OLDEST, NEWEST):
        check_valid(objects, version)
    namespaces = {each["metadata"].get("namespace") for each in objects} - {None, "default"}
    assert namespaces == {"mig-manager"}
    assert of_kind(objects, "Namespace")["metadata"]["name"] == "mig-manager"


def test_chart_and_manifests_grant_what_the_daemon_is_tested_with() -> None:
    shipped = granted(documents(*rbac_files()))
    assert granted(render()) == shipped
    for name in OVERLAYS:
        assert granted(built(name)) == shipped, name
    assert granted(documents(ROOT / "deploy/mig-manager.yaml")) == shipped
    for values, component in (({"dra": {"enabled": True}}, "dra"), (STALE, "stale-resources")):
        assert granted(render(values)) == granted(documents(*rbac_files(component)))


def test_chart_and_manifests_hold_every_daemon_to_its_node() -> None:
    def policies(objects: list[Object]) -> list[Object]:
        kinds = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
        return [of_kind(objects, kind)["spec"] for kind in kinds]

    shipped = policies(documents(*(ROOT / "deploy/policy").glob("[!k]*.yaml")))
    assert policies(render()) == shipped
    assert policies(built("base")) == shipped
    elsewhere = policies(
        render({"fullnameOverride": "gpus", "settings": {"startupTaint": "a/b"}}, "gpu-system")
    )
    text = json.dumps(shipped).replace("mig-manager/not-ready", "a/b")
    text = text.replace("serviceaccount:mig-manager:mig-manager", "serviceaccount:gpu-system:gpus")
    assert elsewhere == json.loads(text.replace('"policyName": "mig-manager"', '"policyName": "gpus"'))
    assert not [each for each in render({"admissionPolicy": {"enabled": False}}) if "Policy" in each["kind"]]


def test_the_overlay_for_the_gpu_operator_finds_its_driver_and_its_operands() -> None:
    given = environment(of_kind(built("overlays/gpu-operator"), "DaemonSet"))
    assert given["DRIVER_ROOT_CTR_PATH"] == given["HOST_ROOT_MOUNT"] + given["NVIDIA_DRIVER_ROOT"]
    assert given["DEFAULT_GPU_CLIENTS_NAMESPACE"] == "gpu-operator"


def test_in_the_standalone_overlay_a_change_can_stop_every_client_by_a_label(tmp_path: Path) -> None:
    objects = built("overlays/standalone")
    (files,) = (each for each in objects if each["kind"] == "ConfigMap")
    path = tmp_path / "operands.yaml"
    path.write_text(files["data"]["operands.yaml"])
    operands = read_operands(path, None)
    ours = of_kind(objects, "DaemonSet", "mig-manager")
    assert environment(ours)["MIG_MANAGER_OPERANDS_FILE"] == "/etc/mig-manager/operands.yaml"
    volumes = ours["spec"]["template"]["spec"]["volumes"]
    assert [v["configMap"]["name"] for v in volumes if "configMap" in v] == [files["metadata"]["name"]]
    clients = [each for each in objects if each["kind"] == "DaemonSet" and each is not ours]
    assert len(clients) == 2
    for each in clients:
        ((label, value),) = each["spec"]["template"]["spec"]["nodeSelector"].items()
        assert label in pause({label: value}, operands, {}).labels
        owners = [one.name for one in operands if one.owns(pods_of(each))]
        assert owners, f"no operand of the list owns the pods of {each['metadata']['name']}"
        assert all(one.label == label for one in operands if one.name in owners)
    plugin = of_kind(objects, "DaemonSet", "nvidia-device-plugin")
    assert environment(plugin)["MIG_STRATEGY"] == environment(ours)["MIG_MANAGER_MIG_STRATEGY"]


def test_the_overlay_for_another_kubelet_leaves_the_path_in_the_container_as_it_is() -> None:
    ours = of_kind(built("overlays/kubelet-podresources"), "DaemonSet")
    volumes = {each["name"]: each for each in ours["spec"]["template"]["spec"]["volumes"]}
    mounts = {each["name"]: each["mountPath"] for each in container(ours)["volumeMounts"]}
    assert volumes["pod-resources"]["hostPath"]["path"] != mounts["pod-resources"]
    assert Path(environment(ours)["MIG_MANAGER_POD_RESOURCES_SOCKET"]).parent == Path(mounts["pod-resources"])
