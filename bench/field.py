"""The demo's fleet with real processes under every policy that can run live, and BAS with streams.

python -m bench.field --work FOLDER --seeds 3 --limit 4   # at most four runs that are not there yet
python -m bench.field --work FOLDER --family bas --seeds 2
python -m bench.field --work FOLDER --table               # what docs/experiments.md has

Brokers are the embedded ones; give it a network of its own (`unshare --net`, with lo up).
"""

import argparse
import itertools
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from fedagent_coordinator import policies
from fedagent_coordinator.books.reader import Reader, open_reader
from fedagent_coordinator.policies.base import TRUTH, VOLUNTEERS

from .fleet import busy, machine_load, run_demo
from .rows import ROOT, Row, show

TARGET = 0.85
_RECIPES = ROOT / "deploy" / "recipes"
_PRIMAL_DUAL = (
    'name = "primal-dual"\nparams = { least = 1, most = 30, start = 5, load_limit_s = 0.3, '
    "epsilon = 0.002 }"
)
_HALF = ("total = 850", "total = 425")


@dataclass(frozen=True, slots=True)
class Variant:
    """One line of a table: a recipe with some of its text replaced, and a policy."""

    recipe: str
    edits: tuple[tuple[str, str], ...] = ()
    policy: str = ""


def variants(family: str) -> dict[str, Variant]:
    """Return the lines of a family by name."""
    if family == "bas":
        fixed = {
            n: ((_PRIMAL_DUAL, f'name = "fixed"\nparams = {{ iterations = {n} }}'), _HALF)
            for n in (2, 5, 10, 20)
        }
        ours = Variant("bas-digits", (_HALF,))
        return {"primal-dual": ours} | {
            f"fixed-{n}": Variant("bas-digits", edits) for n, edits in fixed.items()
        }
    live = [
        name for name in policies.names() if not policies.create(name).needs & {TRUTH, VOLUNTEERS}
    ]
    return {name: Variant("demo", policy=name) for name in live}


def played(variant: Variant, seed: int, *, work: Path, loops: int) -> Row:
    """Run one variant with one seed; return its figures."""
    folder, recipe = work / "run", _RECIPES / f"{variant.recipe}.toml"
    shutil.rmtree(folder, ignore_errors=True)
    if variant.edits:
        text = recipe.read_text(encoding="utf-8")
        for old, new in variant.edits:
            assert text.count(old) == 1, old
            text = text.replace(old, new)
        recipe = work / f"{variant.recipe}.toml"
        recipe.write_text(text, encoding="utf-8")
    before = machine_load()
    with busy(loops):
        said = run_demo(folder, recipe=str(recipe), policy=variant.policy, seed=seed)
    load = round(max(before, machine_load()), 1)
    keys = ("rounds_done", "accuracy", "seconds", "ordered", "in_time", "ledger_balanced")
    if any(key not in said for key in keys):
        raise RuntimeError(f"the demo ended early: {said}")
    with open_reader(folder / "coordinator") as read:
        row: Row = {"load": load, **{key: said[key] for key in keys}, **_course(read)}
    shutil.rmtree(folder)
    return row


def _course(read: Reader) -> Row:
    """Return credits, the last loss, and when the target was reached."""
    run = read.run().run_id
    reached: Row = {"target_round": None, "target_s": None}
    seconds, loss = 0.0, None
    rows = read.rounds(run)
    for row in rows:
        seconds += row.seconds
        loss = row.metrics.get("loss", loss)
        if reached["target_round"] is None and row.metrics.get("accuracy", 0.0) >= TARGET:
            reached = {"target_round": row.round, "target_s": round(seconds, 2)}
    micro = sum(row.paid_micro + row.rent_micro for row in rows)
    return {"credits": micro / 1e6, "loss": loss, **reached}


def runs(family: str, names: list[str], seeds: int, work: Path, loops: int) -> Iterator[Row]:
    """Play what is not there yet, seed by seed."""
    work.mkdir(parents=True, exist_ok=True)
    lines = variants(family)
    for seed in range(seeds):
        for name in names or lines:
            path = work / f"{family}.{name}.{seed}.json"
            if path.exists():
                continue
            row = played(lines[name], seed, work=work, loops=loops)
            path.write_text(json.dumps(row))
            yield {"bench": "field", "family": family, "name": name, "seed": seed, **row}


def rows() -> Iterator[Row]:
    """Play all policies with ten seeds."""
    with tempfile.TemporaryDirectory(prefix="fedagent-bench-") as folder:
        yield from runs("policies", [], 10, Path(folder), 0)


def table(family: str, work: Path) -> str:
    """Return the table of a family, best first, mean ± 95 %."""
    lines: list[tuple[float, str]] = []
    for name in variants(family):
        paths = sorted(work.glob(f"{family}.{name}.*.json"))
        rows = [json.loads(path.read_text()) for path in paths]
        if rows:
            lines.append((-statistics.mean(row["accuracy"] for row in rows), _line(name, rows)))
    head = "| | orders | in time | accuracy | credits | accuracy per 100 credits |"
    head += f" rounds to {TARGET:.0%} | seconds |\n|" + " --- |" * 8
    return "\n".join([head, *(line for _, line in sorted(lines))])


def _line(name: str, rows: list[Row]) -> str:
    def column(key: str) -> list[float]:
        return [float(str(row[key])) for row in rows]

    gain = [100 * a / c for a, c in zip(column("accuracy"), column("credits"), strict=True)]
    reached = [float(str(row["target_round"])) for row in rows if row["target_round"] is not None]
    share = "" if len(reached) == len(rows) else f" ({len(reached)} of {len(rows)})"
    cells = [
        f"`{name}`",
        _mean(column("ordered"), 0),
        _mean(column("in_time"), 0),
        _mean(column("accuracy"), 3),
        _mean(column("credits"), 0),
        _mean(gain, 3),
        (_mean(reached, 1) if reached else "never") + share,
        _mean(column("seconds"), 0),
    ]
    return "| " + " | ".join(cells) + " |"


def _mean(values: list[float], digits: int) -> str:
    mean = statistics.mean(values)
    if len(values) < 2:
        return f"{mean:.{digits}f}"
    t = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 10: 2.26}.get(len(values), 2.0)
    half = t * statistics.stdev(values) / len(values) ** 0.5
    return f"{mean:.{digits}f} ± {half:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--family", choices=["policies", "bas"], default="policies")
    parser.add_argument("--names", default="", help="some lines only, by comma")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--limit", type=int, default=10_000, help="runs of this call")
    parser.add_argument("--busy", type=int, default=0, help="busy processes beside each run")
    parser.add_argument("--table", action="store_true")
    chosen = parser.parse_args()
    if chosen.table:
        print(table(chosen.family, chosen.work))
        return
    names = [name for name in chosen.names.split(",") if name]
    todo = runs(chosen.family, names, chosen.seeds, chosen.work, chosen.busy)
    show(itertools.islice(todo, chosen.limit))


if __name__ == "__main__":
    main()
