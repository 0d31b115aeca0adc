"""Accuracy under attack for each robust rule: 20 devices at one edge, 30 rounds, all in time.

    python -m bench.attacks                      # all that the file of runs lacks
    python -m bench.attacks --rows digits        # or fashion
    python -m bench.attacks --seeds 0            # play nothing, show what the file holds
    python -m bench.attacks --markdown           # as the tables of docs/robust.md

Digits with an mlp at rate 0.1, Fashion-MNIST (200 samples a device) with a softmax at rate 0.3; two
epochs in batches of 32, weights by samples. A run's accuracy is the mean of its last three rounds.
Needs FEDAGENT_DATA. Runs are kept in docs/images/attacks-runs.jsonl; delete lines to measure anew.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np

from fedagent_task.aggregation.robust import registry
from fedagent_testbed.learning.datasets import StudyData, load_classes
from fedagent_testbed.learning.trainer import FederatedTrainer, _model, _partition
from fedagent_testbed.recipe import Training
from fedagent_testbed.sections import Attackers
from fedagent_testbed.study import Figure, figure

from .kept import part, play_missing
from .rows import ROOT, Row, show

RUNS = ROOT / "docs" / "images" / "attacks-runs.jsonl"
CLIENTS, ROUNDS, LAST = 20, 30, 3
DATA = ("digits", "fashion")
WORLDS = ("iid", "dirichlet", "two-labels")
RULES = (
    *("none", "clipped-mean", "trimmed-mean", "median"),
    *("multi-krum", "geometric-median", "centered-clipping"),
)
KINDS = (
    *("sign-flip", "times-100", "not-finite", "label-flip"),
    *("alie", "inner-product", "weight-lie"),
)
SHARES = (0.1, 0.2, 0.3, 0.4)
BAR = 0.03


@cache
def samples(data: str) -> StudyData:
    return load_classes({"fashion": "fashion-mnist"}.get(data, data))


@dataclass(frozen=True, slots=True)
class Case:
    """A rule under an attack; without a share nobody attacks."""

    data: str
    world: str
    rule: str
    kind: str = "clean"
    share: float = 0.0

    @property
    def part(self) -> str:
        """What it belongs to."""
        return f"{self.data}, {self.world}"

    @property
    def label(self) -> str:
        """What it is."""
        return f"{self.rule}, {self.kind}, {self.share:g}"

    def measure(self, seed: int) -> Row:
        """Play it."""
        trainer = self.trainer(seed)
        model, edge, told = trainer.initial(1), np.zeros(CLIENTS, np.int64), []
        with np.errstate(all="ignore"):
            for round_ in range(1, ROUNDS + 1):
                model = trainer.aggregate(model, np.arange(CLIENTS), edge, round_)
                if round_ > ROUNDS - LAST:
                    told.append(trainer.accuracy(model[0]))
        return {"accuracy": round(float(np.mean(told)), 4)}

    def trainer(self, seed: int) -> FederatedTrainer:
        """Return who trains."""
        data, digits = samples(self.data), self.data == "digits"
        training = Training(
            partition=self.world,  # type: ignore[arg-type] # one of three
            model="mlp" if digits else "softmax",
            rate=0.1 if digits else 0.3,
            samples_per_client=None if digits else 200,
            epochs=2,
            weighting="samples",
            test_samples=2000,
        )
        labels = data.y.astype(np.int64)
        return FederatedTrainer(
            data,
            _partition(training, labels, CLIENTS, seed),
            _model(training, data),
            training,
            seed=seed,
            held_out=0.0,
            robust=registry.create(self.rule),
            attackers=Attackers(
                share=self.share,
                kind="sign-flip" if self.kind == "clean" else self.kind,  # type: ignore[arg-type]
            ),
        )


def cases(data: str) -> Iterator[Case]:
    """Yield a fifth of attackers everywhere, and other shares where labels are Dirichlet(1)."""
    for world, rule in product(WORLDS, RULES):
        yield Case(data, world, rule)
        for kind in KINDS:
            yield Case(data, world, rule, kind, 0.2)
    for rule, kind, share in product(RULES, KINDS, SHARES):
        if share != 0.2:
            yield Case(data, "dirichlet", rule, kind, share)


def lost(case: Case, path: Path = RUNS) -> Figure:
    """Return the points below the plain mean that nobody attacks, seed by seed."""
    runs = part(path, case.part)
    clean = runs[Case(case.data, case.world, "none").label]
    pairs = zip(runs[case.label], clean, strict=False)
    return figure([100 * (base["accuracy"] - own["accuracy"]) for own, base in pairs])


def table(data: str, world: str, path: Path = RUNS) -> Iterator[Row]:
    """Yield a rule a row: the points it loses to each attack by a fifth."""
    for rule in RULES:
        row: Row = {"bench": "attacks", "data": data, "world": world, "rule": rule}
        row["clean"] = lost(Case(data, world, rule), path).text(1)
        row |= {kind: lost(Case(data, world, rule, kind, 0.2), path).text(1) for kind in KINDS}
        yield row


def breaks(data: str, path: Path = RUNS) -> Iterator[Row]:
    """Yield the smallest share by which a rule loses more than the bar, where labels differ."""
    for rule in RULES:
        row: Row = {"bench": "attacks", "data": data, "breaks at": "", "rule": rule}
        for kind in KINDS:
            found = (
                f"{share:.0%}"
                for share in SHARES
                if (lost(Case(data, "dirichlet", rule, kind, share), path).mean or 0) > 100 * BAR
            )
            row[kind] = next(found, "no")
        yield row


def markdown(rows: Iterator[Row]) -> str:
    """Return rows as a table of the page."""
    kept = [{k: v for k, v in row.items() if k not in {"bench", "data", "world"}} for row in rows]
    names = [name for name in kept[0] if name != "breaks at"]
    lines = [f"| {' | '.join(names)} |", "| " + " | ".join("---" for _ in names) + " |"]
    lines += [f"| {' | '.join(str(row[name]) for name in names)} |" for row in kept]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", choices=DATA, nargs="*", default=list(DATA))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--runs", type=Path, default=RUNS)
    given = parser.parse_args()
    for data in given.rows:
        if given.seeds:
            play_missing(given.runs, cases(data), range(given.seeds))
        for world in WORLDS:
            rows = table(data, world, given.runs)
            if given.markdown:
                print(f"\n### {data}, {world}\n{markdown(rows)}")
            else:
                show(rows)
        if given.markdown:
            print(f"\n### {data}, breaks\n{markdown(breaks(data, given.runs))}")
        else:
            show(breaks(data, given.runs))


if __name__ == "__main__":
    main()
