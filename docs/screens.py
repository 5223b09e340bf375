"""Draws docs/screens/*.svg: what the commands show on a terminal, and the picture of a run.

Run: python docs/screens.py [NAME...]. Everything comes from the simulation; only times and UUIDs differ from one run to
the next.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

SCREENS = Path(__file__).parent / "screens"
LAYOUTS = Path(__file__).parents[1] / "config" / "layouts.yaml"
_WIDTH = 100
_SPINNER = "the daemon is at work"
_MAIN = (sys.executable, "-m", "mig_manager.cli.main")
_KUBECTL_MIG = (sys.executable, "-m", "mig_manager.cli.kubectl.main")
_FORMAT = """\
<svg class="rich-terminal" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: {char_height}px;
  line-height: {line_height}px; font-variant-east-asian: full-width; }}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g></g>
</svg>
"""
"""As rich has it, with the fonts of the machine: no picture loads anything."""


def shown(
    command: tuple[str, ...],
    arguments: list[str],
    environment: Mapping[str, str] | None = None,
    columns: int = _WIDTH,
) -> str:
    """What a command writes on a colour terminal."""
    settings = {
        "FORCE_COLOR": "1",
        "TERM": "xterm-256color",
        "COLUMNS": str(columns),
        "PYTHONIOENCODING": "utf-8",
    }
    ended = subprocess.run(
        [*command, *arguments],
        env={**os.environ, **settings, **(environment or {})},
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
    )
    return ended.stdout


def screen(title: str, parts: list[tuple[str, str]]) -> str:
    """A picture of a terminal with some commands and what they have written."""
    texts: list[Text] = []
    for command, output in parts:
        still = re.sub(r"\r|\x1b\[[0-9;?]*[A-HJKlh]", "", output).rstrip("\n")
        lines = [line for line in still.split("\n") if _SPINNER not in line]
        texts += [Text.assemble(("$ ", "dim"), (command, "bold")), *map(Text.from_ansi, lines), Text()]
    width = max(_WIDTH, *(text.cell_len for text in texts))
    console = Console(
        record=True, width=width, file=StringIO(), force_terminal=True, color_system="truecolor"
    )
    for text in texts:
        console.print(text)
    return console.export_svg(
        title=title, theme=MONOKAI, code_format=_FORMAT, unique_id=re.sub("[^a-z]+", "-", title)
    )


def plan() -> str:
    """`mig-manager plan`: a change, and all layouts of a file."""
    with tempfile.TemporaryDirectory() as place:
        node = ["--simulate", "2xA100-SXM4-80GB", "--simulate-state", str(Path(place, "gpus.json"))]
        shown(_MAIN, ["apply", *node, "-c", "all-1g.10gb"])
        change = shown(_MAIN, ["plan", *node, "-c", "all-balanced"])
    every = shown(_MAIN, ["plan", "--simulate", "4xA100-SXM4-80GB", "-f", str(LAYOUTS)])
    return screen(
        "mig-manager plan",
        [
            ("mig-manager plan -c all-balanced", change),
            ("mig-manager plan --simulate 4xA100-SXM4-80GB -f layouts.yaml", every),
        ],
    )


def profiles() -> str:
    """`mig-manager profiles` and `placements`."""
    commands = [["profiles", "--simulate", "H100-80GB-HBM3"], ["placements", "--simulate", "H100-80GB-HBM3"]]
    return screen(
        "mig-manager profiles", [(" ".join(["mig-manager", *each]), shown(_MAIN, each)) for each in commands]
    )


def demo() -> str:
    """The second act of the demo; all five make a picture that is too long."""
    acts = re.split(r"\n(?=[^\n]*\d of 5)", shown(_MAIN, ["demo"]))
    return screen("mig-manager demo", [("mig-manager demo", acts[2])])


def kubectl_mig() -> str:
    """`kubectl mig status` and `show`, on the cluster of `mig-manager demo --serve`."""
    with tempfile.TemporaryDirectory() as place:
        serve = [*_MAIN, "demo", "--serve", "--quiet", "--directory", place]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) as cluster:
            try:
                assert cluster.stdout is not None
                for line in cluster.stdout:
                    if "export KUBECONFIG" in line:
                        break
                reach = {"KUBECONFIG": str(Path(place, "kubeconfig"))}
                shown(_KUBECTL_MIG, ["set", "gpu-node-1", "mixed", "--wait"], reach)
                commands = [["status"], ["show", "gpu-node-1"]]
                parts = [
                    (" ".join(["kubectl mig", *each]), shown(_KUBECTL_MIG, each, reach, 120))
                    for each in commands
                ]
            finally:
                cluster.terminate()
    return screen("kubectl mig", parts)


_STEPS = (
    ("Validate", "plan, prove"),
    ("Wait", "window, slot"),
    ("Cordon", "read again"),
    ("Drain", "who is in the way"),
    ("Pause", "GPU clients"),
    ("Apply", "instances, modes"),
    ("Read back", "everything"),
    ("Resume", "GPU clients"),
    ("Await", "fresh resources"),
)
_ACROSS, _BOX, _GAP, _TOP = 24, 112, 14, 96


def run() -> str:
    """The picture of a run, drawn by hand."""
    right = _ACROSS + len(_STEPS) * (_BOX + _GAP) - _GAP
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + _ACROSS} 330" role="img" '
        'aria-label="A run: validate, wait, cordon, drain, pause, apply, read back, resume, await; then success, or, '
        'if anything fails, the previous layout, clients and cordon as before, and failed with the reason">',
        "<style>text{font-family:system-ui,sans-serif;text-anchor:middle;fill:#1b1f24}.h{font-size:15px;font-weight:600}"
        ".s{font-size:10.5px}.n{font-size:12.5px}rect{rx:8px;stroke-width:1.5px}"
        ".calm{fill:#e7f0fa;stroke:#4a7fb5}.held{fill:#fdf0d9;stroke:#c98a1b}.gpu{fill:#f7dcdc;stroke:#b84a4a}"
        ".good{fill:#dff3e2;stroke:#3b8f4d}path{fill:none;stroke:#7d8590;stroke-width:1.6px}</style>",
        f'<rect x="1" y="1" width="{right + _ACROSS - 2}" height="328" style="fill:#fff;stroke:#d0d7de"/>',
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" style="fill:#7d8590;stroke:none"/></marker></defs>',
    ]
    for at, (head, below) in enumerate(_STEPS):
        left = _ACROSS + at * (_BOX + _GAP)
        kind = "calm" if at < 2 else "gpu" if head in ("Apply", "Read back") else "held"
        parts += [
            f'<rect class="{kind}" x="{left}" y="{_TOP}" width="{_BOX}" height="54"/>',
            f'<text class="h" x="{left + _BOX / 2}" y="{_TOP + 23}">{head}</text>',
            f'<text class="s" x="{left + _BOX / 2}" y="{_TOP + 41}">{below}</text>',
        ]
        if at:
            parts.append(_arrow(left - _GAP, _TOP + 27, left - 2, _TOP + 27))
    touched = _ACROSS + 2 * (_BOX + _GAP)
    parts += [
        _brace(_ACROSS, touched - _GAP, "nothing is touched"),
        _brace(
            touched, right, "the node is cordoned; what is changed stands in the journal before it is changed"
        ),
        _line(right, 28, "kubectl label node gpu-1 nvidia.com/mig.config=all-balanced"),
        *_end("calm", _ACROSS, 2, 194, "failed", "nothing was touched"),
        *_end("held", touched, 5, 194, "previous layout back, all runs again", "failed, with the reason"),
        *_end("good", touched + 5 * (_BOX + _GAP), 2, 194, "uncordon", "success"),
        _arrow(_ACROSS + _BOX, _TOP + 54, _ACROSS + _BOX, 192),
        _arrow(touched + 2.5 * (_BOX + _GAP), _TOP + 54, touched + 2.5 * (_BOX + _GAP), 192),
        _arrow(right - _BOX / 2, _TOP + 54, right - _BOX / 2, 192),
        f'<text class="s" x="{_ACROSS + _BOX + 46}" y="176">does not fit</text>',
        f'<text class="s" x="{touched + 2.5 * (_BOX + _GAP) + 44}" y="176">anything fails</text>',
        _line(
            right,
            290,
            "Another label or an edited layout ends the waits: the run starts over, with its journal.",
        ),
        _line(
            right, 311, "A daemon that dies at any point: the next start goes on, or puts everything back."
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _line(right: float, y: float, text: str) -> str:
    return f'<text class="n" x="{(right + _ACROSS) / 2}" y="{y}">{text}</text>'


def _arrow(x: float, y: float, to_x: float, to_y: float) -> str:
    return f'<path d="M{x} {y}L{to_x} {to_y}" marker-end="url(#a)"/>'


def _brace(left: float, right: float, text: str) -> str:
    return (
        f'<path d="M{left} {_TOP - 10}v-8H{right}v8"/>'
        f'<text class="n" x="{(left + right) / 2}" y="{_TOP - 25}">{text}</text>'
    )


def _end(kind: str, left: float, boxes: int, top: float, head: str, below: str) -> list[str]:
    width = boxes * (_BOX + _GAP) - _GAP
    return [
        f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="54"/>',
        f'<text class="h" x="{left + width / 2}" y="{top + 23}">{head}</text>',
        f'<text class="s" x="{left + width / 2}" y="{top + 41}">{below}</text>',
    ]


PICTURES: dict[str, Callable[[], str]] = {
    "run": run,
    "plan": plan,
    "profiles": profiles,
    "demo": demo,
    "kubectl-mig": kubectl_mig,
}


def main(names: list[str]) -> int:
    """Draw the named pictures, or all."""
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        sys.stderr.write(f"no picture {', '.join(unknown)}; there are: {', '.join(PICTURES)}\n")
        return 2
    SCREENS.mkdir(exist_ok=True)
    for name in names or PICTURES:
        (SCREENS / f"{name}.svg").write_text(PICTURES[name](), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
