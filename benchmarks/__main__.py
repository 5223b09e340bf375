"""`python -m benchmarks` runs every benchmark, `python -m benchmarks planning` one of them."""

from __future__ import annotations

import importlib
import os
import pkgutil
import sys

import benchmarks


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all."""
    known = [module.name for module in pkgutil.iter_modules(benchmarks.__path__) if module.name[0] != "_"]
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 2
    # As in the image, processes that start find their modules compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for name in names or known:
        print(f"== {name}")
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
