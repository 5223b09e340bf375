"""What was found in layout files, as SARIF 2.1.0 for code scanning.

Source: OASIS, Static Analysis Results Interchange Format (SARIF) Version 2.1.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import quote

from mig_manager import __version__
from mig_manager.cli.validation.checks import Remark, Verdict
from mig_manager.cli.validation.report import remark_text
from mig_manager.errors import Reason

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_RULES = {
    Reason.INVALID_LAYOUT: "The layout file has a mistake, or a layout does not suit the node.",
    Reason.UNSUPPORTED_PROFILE: "The GPU does not offer the profile.",
    Reason.IMPOSSIBLE_LAYOUT: "The GPU offers every profile, but not all of them at once.",
    Reason.STRATEGY_MISMATCH: "The device plugin's MIG strategy cannot advertise the layout.",
}
_ORDER = list(_RULES)


def sarif_document(verdict: Verdict, docs_url: str | None) -> dict[str, Any]:
    """One run, with a rule for each reason. `docs_url`: where the documentation is published."""
    driver = {
        "name": "mig-manager",
        "version": __version__,
        "rules": [_rule(reason, docs_url) for reason in _ORDER],
    }
    if docs_url is not None:
        driver["informationUri"] = docs_url
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(remark) for remark in verdict.remarks],
    }
    return {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}


def _rule(reason: Reason, docs_url: str | None) -> dict[str, Any]:
    section = reason.lower()
    rule: dict[str, Any] = {
        "id": str(reason),
        "name": str(reason),
        "shortDescription": {"text": _RULES[reason]},
        "help": {"text": f"What to do: docs/troubleshooting.md#{section} of mig-manager"},
        "defaultConfiguration": {"level": "error"},
    }
    if docs_url is not None:
        rule["helpUri"] = f"{docs_url.rstrip('/')}/troubleshooting/#{section}"
    return rule


def _result(remark: Remark) -> dict[str, Any]:
    location: dict[str, Any] = {"artifactLocation": {"uri": _uri(remark.source.file)}}
    if remark.source.line:
        location["region"] = {"startLine": remark.source.line}
    return {
        "ruleId": str(remark.reason),
        "ruleIndex": _ORDER.index(remark.reason),
        "level": str(remark.level),
        "message": {"text": remark_text(remark)},
        "locations": [{"physicalLocation": location}],
    }


def _uri(file: str) -> str:
    path = Path(file)
    return path.as_uri() if path.is_absolute() else quote(path.as_posix())
