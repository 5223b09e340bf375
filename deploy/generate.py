"""Writes what comes from elsewhere: the chart's list of settings and its copies of files, and the plain manifests.

Run: python deploy/generate.py [--check]

The settings come from the model that the daemon reads them with, copies from config/ and deploy/policy, and the plain
manifests from the chart with its default values. Rendering takes helm-python-sdk, and the single file kubectl.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import helm_python
import yaml

from mig_manager.daemon.settings import Settings, environment_name
from mig_manager.daemon.usage import default_text

ROOT = Path(__file__).parents[1]
CHART = ROOT / "deploy/helm/mig-manager"
KUSTOMIZE = ROOT / "deploy/kustomize"
FROM_THE_POD = frozenset({"node_name", "pod_namespace", "pod_ip"})
"""Settings that no value of the chart can give: they differ from pod to pod, or are what the pod's namespace is."""

_NAMESPACE = "mig-manager"
_OF_HELM = ("app.kubernetes.io/managed-by", "helm.sh/chart")
_LIST = re.compile(r"(?<=# BEGIN settings, written by `make manifests`\n).*?(?=# END settings\n)", re.DOTALL)


def value_name(setting: str) -> str:
    """The name of a setting in the chart's values: `drain_mode` is `drainMode`."""
    first, *others = setting.split("_")
    return first + "".join(word.title() for word in others)


def settings() -> Mapping[str, str]:
    """The settings that values can give, by their names there."""
    return {value_name(name): name for name in Settings.model_fields if name not in FROM_THE_POD}


def schema_of_settings() -> dict[str, Any]:
    """What `settings` in the chart's values may be, as a JSON schema."""
    known = Settings.model_json_schema(by_alias=False)["properties"]
    return {
        "description": "The daemon's settings.",
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _schema(name, known[name]) for key, name in settings().items()},
    }


def _schema(setting: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """Of one setting. What it may be besides null: in values, null means that it is not given."""
    kinds = [kind for kind in known.get("anyOf", [known]) if kind.get("type") != "null"]
    kept = {key: value for key, value in kinds[0].items() if key not in ("title", "default", "format")}
    return {**kept, "description": f"{environment_name(setting)}: {known['description']}"}


def list_of_settings() -> str:
    """The settings as comments for values.yaml, with their defaults and what they mean."""
    lines = []
    for key, name in settings().items():
        description = Settings.model_fields[name].description or ""
        lines += textwrap.wrap(description, 112, initial_indent="#   ", subsequent_indent="#   ")
        value = Settings.model_fields[name].get_default(call_default_factory=True)
        default = default_text(name) if value is None or not isinstance(value, str) else json.dumps(value)
        lines.append(f"#     {key}: {default}".rstrip())
    return "".join(f"{line}\n" for line in lines)


def copies() -> Iterator[tuple[Path, Path]]:
    """Files that lie in two places, since neither a chart nor a kustomization reads what is outside of it."""
    operands = ROOT / "config/operands-standalone.yaml"
    yield operands, CHART / "files/operands-standalone.yaml"
    yield operands, KUSTOMIZE / "overlays/standalone/operands.yaml"
    yield ROOT / "deploy/alerts/mig-manager.yaml", CHART / "files/alerts.yaml"
    yield ROOT / "deploy/dashboards/mig-manager.json", CHART / "files/dashboard.json"
    for policy in sorted((ROOT / "deploy/policy").glob("*.yaml")):
        if policy.name != "kustomization.yaml":
            yield policy, CHART / "files/policy" / policy.name


def render(values: Mapping[str, Any] | None = None, namespace: str = _NAMESPACE) -> list[dict[str, Any]]:
    """The objects that the chart makes with these values, hooks included."""
    with helm_python.Chart.load(CHART) as chart:
        texts = chart.render(dict(values or {}), name="mig-manager", namespace=namespace)
    manifests = (text for path, text in sorted(texts.items()) if path.endswith(".yaml"))
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return [each for text in manifests for each in yaml.load_all(text, Loader=loader) if each]


def base() -> str:
    """The objects that only the chart tells of; rules and policies lie beside it."""
    return _plain(render(), "ServiceAccount", "DaemonSet")


def pod_monitor() -> str:
    """How Prometheus scrapes the daemons."""
    return _plain(render({"monitoring": {"podMonitor": {"enabled": True}}}), "PodMonitor")


def _plain(objects: Iterable[dict[str, Any]], *kinds: str) -> str:
    """Those of the kinds, without what only Helm knows."""
    kept = [each for each in objects if each["kind"] in kinds and not is_hook(each)]
    for each in kept:
        for label in _OF_HELM:
            del each["metadata"]["labels"][label]
    text = yaml.safe_dump_all(kept, sort_keys=False, width=110)
    return f"# Written by `make manifests` from the Helm chart.\n{text}"


def is_hook(manifest: Mapping[str, Any]) -> bool:
    """Whether Helm makes it only while it removes the chart."""
    return "helm.sh/hook" in manifest["metadata"].get("annotations", {})


def program(name: str) -> str:
    """A program that comes with the development dependencies, or another one of that name."""
    beside = os.path.dirname(sys.executable)
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ['PATH']}")
    assert found is not None, f"{name} comes with the extra `dev`"
    return found


def single_file() -> str:
    """All of the base as kubectl builds it."""
    done = subprocess.run(
        [program("kubectl"), "kustomize", str(KUSTOMIZE / "base")], check=True, capture_output=True, text=True
    )
    return "# Written by `make manifests`. kubectl apply -f mig-manager.yaml\n" + done.stdout


def written() -> Iterator[tuple[Path, str]]:
    """Every file and what it should be, in an order in which each may depend on those before."""
    values = CHART / "values.yaml"
    yield values, _LIST.sub(lambda _: list_of_settings(), values.read_text(encoding="utf-8"))
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    schema["properties"]["settings"] = schema_of_settings()
    yield CHART / "values.schema.json", json.dumps(schema, indent=2) + "\n"
    names = {key: environment_name(name) for key, name in settings().items()}
    yield (
        CHART / "files/settings.yaml",
        "# Written by `make manifests`.\n" + yaml.safe_dump(names, sort_keys=False),
    )
    for source, copy in copies():
        yield copy, source.read_text(encoding="utf-8")
    yield KUSTOMIZE / "base/mig-manager.yaml", base()
    yield KUSTOMIZE / "components/monitoring/podmonitor.yaml", pod_monitor()
    yield ROOT / "deploy/mig-manager.yaml", single_file()


def main() -> int:
    """Write the files, or compare them."""
    stale = []
    for path, text in written():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if "--check" not in sys.argv[1:]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if "--check" in sys.argv[1:] and stale:
        sys.stderr.write(f"out of date: {', '.join(stale)}; run: make manifests\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
