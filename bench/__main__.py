"""Run every benchmark and print one JSON line per figure: ``python -m bench [NAME ...]``.

All of them without a name; ``--help`` lists the names. Figures are medians, and what is compared
is measured in one run.
"""

import argparse
import sys
from collections.abc import Callable

from . import (
    beliefs,
    choices,
    decisions,
    demo,
    democracy,
    faults,
    field,
    floods,
    gda,
    graph,
    hostile,
    imports,
    learners,
    ledger,
    limits,
    loss,
    memory,
    onnx,
    rbcs,
    replay,
    rounds,
    scale,
    secagg,
    size,
    soak,
    solvers,
    storm,
    walk,
    year,
)
from .rows import ROOT, Row, Rows, show, tested

SEEDS = 20


def survival() -> Row:
    """What must survive, with many seeds in virtual time, and with real processes."""
    real = ("tests/e2e/test_survival.py", "tests/e2e/test_hostile.py")
    return {"seeds": SEEDS, **tested("survival", f"--seeds={SEEDS}", "tests/testbed", *real)}


def live_families() -> Rows:
    """Return every family of models, learnt live."""
    from . import families

    return families.rows()


def live_page() -> Rows:
    """Return what the live page costs; it needs a browser."""
    from . import page

    return page.rows()


BENCHES: dict[str, Callable[[], Rows]] = {
    "rounds": lambda: (rounds.measure(case) for case in rounds.ALL),
    "memory": lambda: (row() for row in memory.ROWS.values()),
    "first-round": lambda: iter([demo.first_round()]),
    "fresh": lambda: iter([demo.fresh()]),
    "survival": lambda: iter([survival()]),
    "solvers": solvers.rows,
    "rbcs": rbcs.rows,
    "gda": gda.quick_init,
    "beliefs": beliefs.rows,
    "learners": learners.rows,
    "decisions": decisions.rows,
    "choices": choices.rows,
    "democracy": democracy.rows,
    "scale": scale.rows,
    "onnx": onnx.rows,
    "limits": limits.rows,
    "loss": loss.rows,
    "page": live_page,
    "replay": lambda: replay.rows(100, ""),
    "year": lambda: iter([year.year(20_000)]),
    "figures": lambda: iter([tested("figures", str(ROOT / "bench" / "checks"))]),
    "walk": walk.rows,
    "size": size.rows,
    "imports": imports.rows,
    "ledger": ledger.rows,
    "ledger-model": lambda: iter([ledger.model()]),
    "field": field.rows,
    "graph": graph.rows,
    "families": live_families,
    "hostile": hostile.rows,
    "secagg": secagg.rows,
    "soak": soak.rows,
    "floods": floods.rows,
    "storm": storm.rows,
    "faults": lambda: iter([faults.rows()]),
    "seeds": lambda: iter([demo.seeds(10)]),
}


def main() -> int:
    if sys.argv[1:2] == ["size"]:
        return size.main()
    if sys.argv[1:] == ["walk", "--list"]:
        return walk.main()
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    names = parser.parse_args().names or list(BENCHES)
    unknown = [name for name in names if name not in BENCHES]
    if unknown:
        parser.error(f"no bench {unknown[0]}; there are {', '.join(BENCHES)}")
    met = [show(BENCHES[name]()) for name in names]
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
