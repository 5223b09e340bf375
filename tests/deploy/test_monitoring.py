"""Probes, monitors, alerts and dashboard: as they are shipped, and as the chart makes them.

That every metric and label which they name is there is seen in the scrape of a daemon (tests/daemon/test_metrics.py).
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import helm_python
import promql_parser
import pytest
import yaml

from deploy.generate import CHART
from mig_manager.daemon.settings import load_settings
from mig_manager.daemon.usage import misspelt
from tests.deploy import promql
from tests.deploy.charts import Object, built, container, daemon_set, of_kind, render, values_of
from tests.deploy.promql import ALERTS, DASHBOARD, alerts
from tests.requirements import need

ON = values_of(CHART / "ci/11-monitoring-values.yaml")
ENDPOINT = {
    "port": "http",
    "path": "/metrics",
    "interval": "15s",
    "relabelings": [{"sourceLabels": ["__meta_kubernetes_pod_node_name"], "targetLabel": "node"}],
}
SELECTOR = {
    "matchLabels": {"app.kubernetes.io/name": "mig-manager", "app.kubernetes.io/instance": "mig-manager"}
}


@pytest.mark.parametrize(
    ("listen", "port"),
    [
        (None, 9409),
        ("9500", 9500),
        ("0.0.0.0:9500", 9500),
        ("[::]:9500", 9500),
        ("127.0.0.1:9500", None),
        ("0", None),
        ("off", None),
    ],
)
def test_the_kubelet_asks_where_the_daemon_listens(listen: str | None, port: int | None) -> None:
    made = container(daemon_set({"settings": {"listen": listen}} if listen else {}))
    assert [each["containerPort"] for each in made.get("ports", [])] == ([port] if port else [])
    paths = {made[kind]["httpGet"]["path"] for kind in ("livenessProbe", "readinessProbe") if kind in made}
    assert paths == ({"/livez", "/readyz"} if port else set())
    settings = load_settings(node_name="a", pod_ip="10.0.0.7", listen=listen or "9409")
    reachable = settings.listen_on is not None and settings.listen_on[0] in ("10.0.0.7", "0.0.0.0", "::")
    assert port is None or (reachable and settings.listen_on is not None and settings.listen_on[1] == port)


def test_a_probe_can_be_changed_or_left_out() -> None:
    made = container(daemon_set({"livenessProbe": {"periodSeconds": 60}, "readinessProbe": None}))
    assert made["livenessProbe"]["periodSeconds"] == 60
    assert made["livenessProbe"]["failureThreshold"] == 4
    assert "readinessProbe" not in made


def test_monitors_scrape_every_daemon_and_name_its_node() -> None:
    monitor = of_kind(render(ON), "PodMonitor")
    assert monitor["apiVersion"] == "monitoring.coreos.com/v1"
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"] == {"selector": SELECTOR, "podMetricsEndpoints": [ENDPOINT]}
    objects = render({"monitoring": {"serviceMonitor": {"enabled": True, "interval": "15s"}}})
    assert of_kind(objects, "ServiceMonitor")["spec"] == {"selector": SELECTOR, "endpoints": [ENDPOINT]}
    service = of_kind(objects, "Service")
    assert service["spec"]["clusterIP"] == "None"
    assert SELECTOR["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert SELECTOR["matchLabels"] == service["spec"]["selector"]
    template = of_kind(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert SELECTOR["matchLabels"].items() <= template.items()
    variables = [f"MIG_MANAGER_METRICS_{end}" for end in ("SERVICE_HOST", "SERVICE_PORT_HTTP", "PORT")]
    assert misspelt(variables) == []


def test_nothing_that_an_operator_has_to_know_is_made_unless_asked_for() -> None:
    assert not [each for each in render() if "monitoring.coreos.com" in each["apiVersion"]]
    with pytest.raises(helm_python.HelmError, match="leaves no page to scrape"):
        render({"monitoring": {"podMonitor": {"enabled": True}}, "settings": {"listen": "off"}})


def test_chart_and_kustomize_ship_the_same_alerts_and_dashboard() -> None:
    for objects in (render(ON), built("components/monitoring")):
        assert of_kind(objects, "PrometheusRule")["spec"] == ALERTS["spec"]
        config_map = of_kind(objects, "ConfigMap", "mig-manager-dashboard")
        assert json.loads(config_map["data"]["mig-manager.json"]) == DASHBOARD
        assert config_map["metadata"]["labels"]["grafana_dashboard"] == "1"
    made = of_kind(render(ON), "ConfigMap", "mig-manager-dashboard")
    assert made["metadata"]["namespace"] == "grafana"
    monitors = [
        of_kind(objects, "PodMonitor")["spec"]["selector"] for objects in (built("components/monitoring"),)
    ]
    assert monitors == [SELECTOR]


def test_every_alert_says_what_is_wrong_and_where() -> None:
    names = [each["alert"] for each in alerts()]
    assert len(set(names)) == len(names)
    for each in alerts():
        assert set(each) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mh]", each.get("for", "1m"))
        assert each["labels"] == {"severity": "warning"}
        assert set(each["annotations"]) == {"summary", "description"}
        assert "{{ $labels.node }}" in each["annotations"]["summary"]


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    need("promtool", promtool)
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(ALERTS["spec"]))
    cases = shutil.copy(Path(__file__).parent / "alerts.yaml", tmp_path)
    done = subprocess.run(
        [str(promtool), "test", "rules", str(cases)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("query", "missing"),
    [
        ("mig_manager_drifted == 1", "no metric mig_manager_drifted"),
        ('sum(mig_manager_state{phase="failed"})', "no label ['phase']"),
        ("sum by (layout) (mig_manager_state)", "no label ['layout']"),
        ("mig_manager_drift unless on (state) mig_manager_state", "no label ['state']"),
        ("rate(mig_manager_state[5m]) + mig_manager_drift", "rate(mig_manager_state[5m])"),
    ],
)
def test_a_query_that_asks_for_what_is_not_there_is_found(query: str, missing: str) -> None:
    there = {"mig_manager_drift": frozenset[str](), "mig_manager_state": frozenset({"state"})}
    with pytest.raises(AssertionError, match=re.escape(missing)):
        promql.labels_of(promql_parser.parse(query), there)


def _overlap(one: Object, other: Object) -> bool:
    a, b = one["gridPos"], other["gridPos"]
    return bool(
        a["x"] < b["x"] + b["w"]
        and b["x"] < a["x"] + a["w"]
        and a["y"] < b["y"] + b["h"]
        and b["y"] < a["y"] + a["h"]
    )


def test_the_dashboard_is_one_that_grafana_shows() -> None:
    panels: list[Any] = DASHBOARD["panels"]
    assert [each["id"] for each in panels] == list(range(1, len(panels) + 1))
    assert not [pair for pair in combinations(panels, 2) if _overlap(*pair)]
    assert all(each["gridPos"]["x"] + each["gridPos"]["w"] <= 24 for each in panels)
    variables = [each["name"] for each in DASHBOARD["templating"]["list"]]
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels))) - {"__rate_interval"}
    assert used == set(variables) == {"datasource", "node"}
    assert all(each["datasource"]["uid"] == "${datasource}" for each in panels)
