"""The Helm chart: valid for Kubernetes, the same settings as the daemon's, and errors that name their place."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import helm_python
import pytest
import yaml

from deploy.generate import CHART, FROM_THE_POD, settings
from mig_manager import __version__
from mig_manager.daemon.settings import Settings, environment_name, load_settings
from mig_manager.daemon.usage import misspelt
from mig_manager.layouts.schema import parse_layouts
from tests.deploy.charts import (
    NEWEST,
    OLDEST,
    VALUES,
    Object,
    check_valid,
    container,
    daemon_set,
    downward,
    environment,
    granted,
    of_kind,
    render,
    values_of,
)

EVERY_SET = pytest.mark.parametrize("path", VALUES, ids=lambda path: path.stem)


def test_the_chart_is_of_this_version_and_lints_clean() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == __version__
    assert chart["kubeVersion"] == f">={OLDEST}.0-0"
    assert len(VALUES) >= 10
    for path in VALUES:
        report = helm_python.lint(CHART, values_of(path), strict=True)
        findings = [each for each in report["messages"] if each["severity"] > 1]
        assert (findings, report["errors"]) == ([], []), path


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@EVERY_SET
def test_every_object_is_valid(path: Path, version: str) -> None:
    objects = render(values_of(path))
    assert {"DaemonSet"} <= {each["kind"] for each in objects}
    check_valid((each for each in objects if "monitoring.coreos.com" not in each["apiVersion"]), version)


@EVERY_SET
def test_the_daemon_takes_the_environment(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = values_of(path)
    made = daemon_set(values)
    given = environment(made)
    for name in map(environment_name, Settings.model_fields):
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    taken = load_settings(node_name="gpu-1", pod_namespace="mig-manager")
    assert misspelt(given) == []
    for key, value in values.get("settings", {}).items():
        found = getattr(taken, settings()[key])
        wanted = tuple(value) if isinstance(value, list) else value
        assert (str(found) if isinstance(found, Path) else found) == wanted
    assert downward(made) == {
        "NODE_NAME": "spec.nodeName",
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
    }
    assert made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > taken.stop_timeout + 10


def a_value(setting: str) -> Any:
    """One that differs from the default, and that the setting takes."""
    default = Settings.model_fields[setting].get_default(call_default_factory=True)
    special: dict[str, Any] = {
        "pool_limits": ["a100=5"],
        "maintenance_windows": ["0 22 * * mon-fri 6h"],
        "maintenance_timezone": "Europe/Berlin",
        "dbus_address": "unix:path=/bus",
        "cdi_commands": [["true", '"quoted" {output}']],
        "drain_grace_period": 1000000,
        "listen": "0.0.0.0:9400",
    }
    if setting in special:
        return special[setting]
    if isinstance(default, bool):
        return not default
    if isinstance(default, int | float):
        return 54321
    choices = [each for each in get_args(Settings.model_fields[setting].annotation) if isinstance(each, str)]
    if choices:
        return next(each for each in choices if each != default)
    return ["one", "two words"] if isinstance(default, tuple) else "/some/where"


def test_every_setting_can_be_given_as_a_value_and_reaches_the_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(settings().values()) | FROM_THE_POD == set(Settings.model_fields)
    values = {key: a_value(name) for key, name in settings().items()}
    for name, value in environment(daemon_set({"settings": values})).items():
        monkeypatch.setenv(name, value)
    taken = load_settings(node_name="gpu-1", pod_namespace="default")
    assert taken == Settings(
        node_name="gpu-1", pod_namespace="default", **{name: values[key] for key, name in settings().items()}
    )


@pytest.mark.parametrize(
    ("values", "parts"),
    [
        ({"settings": {"drainMode": "evct"}}, ["/settings/drainMode", "'evict', 'wait', 'delete', 'off'"]),
        ({"settings": {"drainTimeout": "10m"}}, ["/settings/drainTimeout", "got string, want number"]),
        ({"settings": {"stopTimeout": 0}}, ["/settings/stopTimeout", "0"]),
        ({"settings": {"holdersIgnored": "dcgm"}}, ["/settings/holdersIgnored", "want array"]),
        ({"settings": {"drainmode": "off"}}, ["/settings", "'drainmode' not allowed"]),
        ({"setings": {}}, ["'setings' not allowed"]),
        ({"operands": {"preset": "operator"}}, ["/operands/preset", "'gpu-operator', 'standalone'"]),
        ({"driver": {"root": "run/nvidia"}}, ["/driver/root"]),
        ({"image": {"digest": "0123"}}, ["/image/digest"]),
        ({"layouts": {"version": "v2"}}, ["/layouts/version", "'v1'"]),
        (
            {"layouts": {"mig-configs": {"a": [{"device-filter": 0x20B010DE}]}}},
            ["/layouts/mig-configs/a/0/device-filter", "got number"],
        ),
        ({"layouts": {"mig-configs": {"true": []}}}, ["/layouts/mig-configs/true"]),
        ({"tolerations": [{"key": "a", "operator": "Is"}]}, ["/tolerations/0/operator"]),
        ({"cleanup": {"wait": -1}}, ["/cleanup/wait"]),
        ({"settings": {"listen": 9409}}, ["/settings/listen", "got number, want string"]),
        ({"monitoring": {"podMonitor": {"interval": "often"}}}, ["/monitoring/podMonitor/interval"]),
    ],
    ids=lambda each: str(next(iter(each))) if isinstance(each, dict) else "",
)
def test_a_wrong_value_is_refused_with_its_path(values: Object, parts: list[str]) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    for part in parts:
        assert part in str(refused.value)


def test_layouts_are_the_same_as_a_mapping_and_as_a_text() -> None:
    mapping = values_of(CHART / "ci/02-layouts-values.yaml")["layouts"]
    for layouts in (mapping, yaml.safe_dump(mapping, sort_keys=False)):
        config_map = of_kind(render({"layouts": layouts}), "ConfigMap", "mig-manager-layouts")
        text = config_map["data"]["config.yaml"]
        assert yaml.safe_load(text) == mapping
        assert list(parse_layouts(text, file="config.yaml").layouts) == list(mapping["mig-configs"])


def test_a_text_is_passed_on_letter_by_letter() -> None:
    values = values_of(CHART / "ci/03-layouts-text-values.yaml")
    objects = render(values)
    config_map = of_kind(objects, "ConfigMap", "layouts")
    assert config_map["metadata"]["namespace"] == "gpu-config"
    assert config_map["data"]["layouts.yaml"].strip() == values["layouts"].strip()
    assert ("gpu-config", "", "configmaps", "layouts", "watch") in granted(objects)


def test_without_layouts_there_is_no_config_map() -> None:
    assert not [each for each in render() if each["kind"] == "ConfigMap"]


def test_rules_follow_from_the_values() -> None:
    everything = granted(render())
    eviction = ("", "", "pods/eviction", "", "create")
    assert eviction in everything
    for mode in ("wait", "delete", "off"):
        assert granted(render({"settings": {"drainMode": mode}})) == everything - {eviction}
    layouts = {each for each in everything if each[2] == "configmaps"}
    assert granted(render({"settings": {"configFile": "/l.yaml"}})) == everything - layouts
    leases = {each for each in everything if each[2] == "leases"}
    assert granted(render({"settings": {"editedLayouts": "report"}})) == everything - leases
    limited = {"settings": {"editedLayouts": "report", "maxParallelNodes": 3}}
    assert granted(render(limited)) == everything
    stale = {("", "", "nodes/status", "", "patch")}
    assert granted(render({"settings": {"removeStaleResources": True}})) == everything | stale
    claims = {("", "resource.k8s.io", "resourceclaims", "", "get")}
    slices = {("", "resource.k8s.io", "resourceslices", "", verb) for verb in ("list", "watch")}
    assert granted(render({"dra": {"enabled": True}})) == everything | claims | slices


def test_the_start_up_taint_is_tolerated_whatever_else_is() -> None:
    cases: list[Object] = [{}, {"tolerations": []}]
    for values in cases:
        tolerations = daemon_set(values)["spec"]["template"]["spec"]["tolerations"]
        assert {"key": "mig-manager/not-ready", "operator": "Exists"} in tolerations


def test_a_change_of_the_operands_starts_the_daemons_anew() -> None:
    sets = [daemon_set(values_of(path)) for path in VALUES if "standalone" in path.name or "dgx" in path.name]
    sums = {each["spec"]["template"]["metadata"]["annotations"]["checksum/files"] for each in sets}
    assert len(sums) == len(sets)


def test_what_is_mounted_is_where_the_environment_says() -> None:
    made = daemon_set(values_of(CHART / "ci/09-dgx-values.yaml"))
    given = environment(made)
    mounts = {each["name"]: each["mountPath"] for each in container(made)["volumeMounts"]}
    volumes = {each["name"]: each for each in made["spec"]["template"]["spec"]["volumes"]}
    assert set(mounts) == set(volumes)
    assert volumes["pod-resources"]["hostPath"]["path"] == "/var/lib/k0s/kubelet/pod-resources"
    assert Path(given["MIG_MANAGER_POD_RESOURCES_SOCKET"]).parent == Path(mounts["pod-resources"])
    assert given["HOST_ROOT_MOUNT"] == mounts["host"]
    files = of_kind(render(values_of(CHART / "ci/09-dgx-values.yaml")), "ConfigMap", "mig-manager-files")[
        "data"
    ]
    for variable in ("MIG_MANAGER_OPERANDS_FILE", "GPU_CLIENTS_FILE"):
        path = Path(given[variable])
        assert path.parent == Path(mounts["files"])
        assert path.name in files
    assert given["WITH_SHUTDOWN_HOST_GPU_CLIENTS"] == "true"
