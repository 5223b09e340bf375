"""As much of modprobe as a MIG manager calls: nvidia_drm unloaded and loaded, with its words and exit codes.

python -m mig_manager.simulation.modprobe --state FILE -r nvidia_drm
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from mig_manager.simulation.gpus import SimulatedGpus

_MODULE = "nvidia_drm"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="modprobe")
    parser.add_argument("--state", required=True, type=Path)
    parser.add_argument("-r", "--remove", action="store_true")
    parser.add_argument("module")
    options = parser.parse_args(arguments)
    if options.module != _MODULE:
        return _fail(f"Module {options.module} not found.")
    gpus = SimulatedGpus.open(options.state)
    if options.remove and gpus.option("drm_users"):
        return _fail(f"Module {_MODULE} is in use.")
    gpus.change_options(drm=not options.remove)
    return 0


def _fail(words: str) -> int:
    sys.stderr.write(f"modprobe: FATAL: {words}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
