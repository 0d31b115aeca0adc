"""Play the papers' experiments again: ``python -m bench.experiments [NAME ...]``.

    python -m bench.experiments --list                    # names, papers, seeds
    python -m bench.experiments rbcs-table --seeds 2 --set rounds.count=50     # a glance
    python -m bench.experiments cocs-mnist --keep         # and write it into kept.csv
    python -m bench.experiments gda-table --told          # play nothing, show the table

Each case is a line of JSON beside what the table holds for it. Figures are means over seeds with
95 % intervals; ``more_`` is the difference by seed to the experiment's base.
"""

import argparse
import json

from . import driver, special, table
from .table import Line


def show(one: Line, kept: dict[tuple[str, str], Line]) -> None:
    """Print a case, and what the table has for it."""
    row: dict[str, object] = {"experiment": one.experiment, "case": one.case, "seeds": one.seeds}
    row["figures"] = one.figures
    if (known := kept.get((one.experiment, one.case))) and known is not one:
        row["kept"] = known.figures
    print(json.dumps(row, ensure_ascii=False), flush=True)


def main() -> int:
    known = driver.experiments()
    parser = argparse.ArgumentParser(prog="bench.experiments", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--told", action="store_true", help="show the table, play nothing")
    parser.add_argument("--keep", action="store_true", help="write what was played into the table")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--case", default="", help="only cases with this in their label")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    lines = {(one.experiment, one.case): one for one in table.read()}
    names = args.names or [*known, *special.EXPERIMENTS]
    for name in names:
        if name not in known and name not in special.EXPERIMENTS:
            parser.error(f"no experiment {name}; --list shows them")
        if args.list:
            paper, seeds = (
                special.ABOUT.get(name, ("", 0))
                if name not in known
                else (known[name].paper, known[name].seeds)
            )
            print(f"{name:26} {seeds:3} seeds  {paper}")
            continue
        if args.told:
            for one in lines.values():
                if one.experiment == name:
                    show(one, {})
            continue
        if name in known:
            found = driver.lines(
                name, known[name], seeds=args.seeds, sets=args.set, only=args.case, jobs=args.jobs
            )
        else:
            found = special.EXPERIMENTS[name](name, args.seeds or special.ABOUT[name][1], args.case)
        for one in found:
            show(one, lines)
            if args.keep:
                table.keep([one])
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
