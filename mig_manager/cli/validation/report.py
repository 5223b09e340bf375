"""What was found in layout files, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.text import Text

from mig_manager.cli.validation.checks import FileVerdict, Level, Outcome, Remark, Trial, Verdict
from mig_manager.layouts.findings import clipped

_STYLES = {Level.ERROR: "bold red", Level.WARNING: "yellow"}
_OUTCOME_STYLES = {Outcome.FITS: "green", Outcome.FAILS: "red"}


def text_lines(verdict: Verdict) -> Iterator[Text]:
    """Findings as compilers print them, then which layout fits where, then the sum."""
    for remark in verdict.remarks:
        line = Text(f"{remark.source}: ")
        line.append(remark.level, _STYLES[remark.level])
        line.append(f": {remark.reason}: {remark_text(remark)}")
        yield line
    for file in verdict.files:
        if any(layout.trials for layout in file.layouts):
            yield from _table(file, titled=len(verdict.files) > 1)
    yield Text(_sum(verdict), "bold")


def remark_text(remark: Remark) -> str:
    """A remark with its place in the structure and the nodes that it is about."""
    where = f"{remark.path}: " if remark.path else ""
    return f"{where}on {remark.gpus}: {remark.text}" if remark.gpus else where + remark.text


def json_document(verdict: Verdict) -> dict[str, Any]:
    """Everything, for scripts."""
    return {
        "valid": verdict.valid,
        "files": [
            {
                "file": file.file,
                "name": file.name or None,
                "layouts": [
                    {
                        "layout": layout.name,
                        "line": layout.source.line,
                        "nodes": [_trial(trial) for trial in layout.trials],
                    }
                    for layout in file.layouts
                ],
            }
            for file in verdict.files
        ],
        "findings": [
            {
                "level": str(remark.level),
                "reason": str(remark.reason),
                "file": remark.source.file,
                "line": remark.source.line or None,
                "path": remark.path or None,
                "gpus": remark.gpus,
                "message": remark.text,
            }
            for remark in verdict.remarks
        ],
    }


def _trial(trial: Trial) -> dict[str, Any]:
    document: dict[str, Any] = {"gpus": trial.gpus, "result": str(trial.outcome)}
    if trial.remarks:
        document["why"] = [remark.text for remark in trial.remarks]
    return document


def _table(file: FileVerdict, *, titled: bool) -> Iterator[Text]:
    if titled:
        yield Text(f"{file.file} ({file.name})" if file.name else file.file)
    tried = [layout for layout in file.layouts if layout.trials]
    heads = ["LAYOUT", *(trial.gpus for trial in tried[0].trials)]
    rows = [[clipped(layout.name), *(_cell(trial) for trial in layout.trials)] for layout in tried]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    yield Text(
        "  ".join(f"{head:<{width}}" for head, width in zip(heads, widths, strict=True)).rstrip(), "bold"
    )
    for layout, row in zip(tried, rows, strict=True):
        line = Text(f"{row[0]:<{widths[0]}}")
        for cell, width, trial in zip(row[1:], widths[1:], layout.trials, strict=True):
            line.append(f"  {cell:<{width}}", _OUTCOME_STYLES.get(trial.outcome, "dim"))
        line.rstrip()
        yield line
    yield Text()


def _cell(trial: Trial) -> str:
    return trial.outcome.replace("-", " ")


def _sum(verdict: Verdict) -> str:
    layouts = sum(len(file.layouts) for file in verdict.files)
    files = len({file.file for file in verdict.files})
    counts = [
        _count(number, str(level))
        for level in Level
        if (number := sum(remark.level is level for remark in verdict.remarks))
    ]
    return f"{_count(layouts, 'layout')} in {_count(files, 'file')}: {', '.join(counts) or 'no errors'}"


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
