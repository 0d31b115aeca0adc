"""Run every benchmark and print one JSON line per figure: ``python -m bench [NAME ...]``.

All of them without a name; ``--help`` lists the names. Figures are medians, and what is compared
is measured in one run. A bench is a module of this folder with a function `rows`.
"""

import argparse
import sys
from importlib import import_module

from . import size
from .rows import show

NAMES = (
    *("rounds", "memory", "demo", "learners", "decisions", "choices", "scale"),
    *("solvers", "replay", "page", "graph", "secagg", "ledger", "year", "floods", "storm", "soak"),
    *("walk", "size"),
)


def main() -> int:
    if sys.argv[1:2] == ["size"]:
        return size.main()
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    names = parser.parse_args().names or list(NAMES)
    if unknown := [name for name in names if name not in NAMES]:
        parser.error(f"no bench {unknown[0]}; there are {', '.join(NAMES)}")
    # Each is loaded alone: some need a browser, torch or mosquitto.
    benches = [import_module(f"bench.{name}") for name in names]
    met = [show(bench.rows()) for bench in benches]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
