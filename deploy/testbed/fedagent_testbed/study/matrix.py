"""Policies x worlds: what share of the best a policy has in each, and its rank. Numbers only."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from .comparison import COVERAGE, Figure, figure, seeds_text
from .history import History

POLICIES = (
    *("adaptive", "linucb", "cocs", "cocs-paper", "cucb", "fair", "rbcs-f", "fastest", "random"),
    *("cheapest", "round-robin"),
)
"""Whom a matrix compares if nobody is named: all that need neither opinions nor the truth."""
REFERENCE = "oracle-p"

PerSeed = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a policy made of a world, seed by seed: utility, and the figures of coverage."""

    utility: tuple[float, ...]
    coverage: Mapping[str, PerSeed]

    @classmethod
    def of(cls, runs: tuple[History, ...], kind: str) -> "Outcome":
        """Return it of runs, one a seed; `kind` of utility."""
        return cls(
            tuple(float(run.utility(kind).sum()) for run in runs),
            {key: tuple(getattr(run.coverage, key, None) for run in runs) for key in COVERAGE},
        )

    @property
    def mean(self) -> float:
        """Mean utility over the seeds."""
        return float(np.mean(self.utility))


@dataclass(frozen=True, slots=True)
class Played:
    """A world, and what policies made of it, the reference among them."""

    about: str
    rounds: int
    outcomes: Mapping[str, Outcome]
    skipped: Mapping[str, str] = field(default_factory=dict)  # policies, with the reason

    @property
    def best(self) -> str:
        """The policy with the largest mean utility, but for the reference."""
        return max(self.policies, key=lambda name: self.outcomes[name].mean)

    def is_best(self, name: str) -> bool:
        """Return whether no policy has a larger mean utility; equals are all of them best."""
        return name in self.policies and self.outcomes[name].mean == self.outcomes[self.best].mean

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, without the reference."""
        return tuple(name for name in self.outcomes if name != REFERENCE)

    def share(self, name: str, of: str) -> Figure:
        """Return utility over another's, seed by seed: `name` may be better on one of them."""
        both = zip(self.outcomes[name].utility, self.outcomes[of].utility, strict=True)
        # A world in which the other earns nothing is everybody's.
        return figure([mine / whole if whole else 1.0 for mine, whole in both])

    def rank(self, name: str) -> float:
        """Return 1 for the largest mean utility; equals share the mean of their ranks."""
        mine = self.outcomes[name].mean
        others = np.array([self.outcomes[other].mean for other in self.policies])
        return float((others > mine).sum() + ((others == mine).sum() + 1) / 2)


@dataclass(frozen=True, eq=False, repr=False)
class Matrix:
    """Worlds that were played, and why others were not."""

    worlds: Mapping[str, Played]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Matrix of {len(self.worlds)} worlds: {', '.join(self.policies)}>"

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """The policies that played somewhere, the best mean share first."""
        names = {name: None for one in self.worlds.values() for name in one.policies}
        return tuple(sorted(names, key=lambda name: -self.mean_share(name)))

    def share(self, world: str, name: str) -> Figure | None:
        """Return the share of the best policy's utility in a world; None if it did not play."""
        one = self.worlds[world]
        return one.share(name, one.best) if name in one.policies else None

    def mean_share(self, name: str) -> float:
        """Return the mean over the worlds in which a policy plays."""
        return float(np.mean(list(self._shares(name).values())))

    def least_share(self, name: str) -> tuple[float, str]:
        """Return the smallest share, and the world."""
        return min((share, world) for world, share in self._shares(name).items())

    def mean_rank(self, name: str) -> float:
        """Return the mean rank over the worlds in which a policy plays."""
        ranks = [one.rank(name) for one in self.worlds.values() if name in one.policies]
        return float(np.mean(ranks))

    def _shares(self, name: str) -> dict[str, float]:
        found = ((world, self.share(world, name)) for world in self.worlds)
        return {world: one.mean for world, one in found if one is not None and one.mean is not None}

    def record(self) -> dict[str, object]:
        """Return everything as JSON data, by the reference in `docs/testbed.md`."""
        return {
            "worlds": {name: self._world(name, one) for name, one in self.worlds.items()},
            "policies": {name: self._policy(name) for name in self.policies},
            "skipped": dict(self.skipped),
        }

    def rows(self) -> list[list[str]]:
        """Return heads, a row of shares per world, and the means; * is the best.

        The last column is what the best has of the utility of the reference.
        """
        rows = [["world", *self.policies, f"best of {REFERENCE}"]]
        for world, one in self.worlds.items():
            shares = ((name, self.share(world, name)) for name in self.policies)
            cells = (_text(share) + ("*" if one.is_best(name) else "") for name, share in shares)
            known = one.share(one.best, REFERENCE) if REFERENCE in one.outcomes else None
            rows.append([world, *cells, _text(known)])
        rows.append(["mean share", *(f"{self.mean_share(name):.3f}" for name in self.policies)])
        least = (self.least_share(name)[0] for name in self.policies)
        rows.append(["least share", *(f"{share:.3f}" for share in least)])
        rows.append(["mean rank", *(f"{self.mean_rank(name):.1f}" for name in self.policies)])
        return [[*row, *[""] * (len(rows[0]) - len(row))] for row in rows]

    def coverage_rows(self) -> list[list[str]]:
        """Return heads, and a row per world and figure of coverage known there: the worst seed."""
        rows = [["coverage", *self.policies]]
        for world, one in self.worlds.items():
            for key in COVERAGE:
                worst = [one.outcomes.get(name) for name in self.policies]
                cells = [_worst(outcome, key) for outcome in worst]
                if set(cells) != {"-"}:
                    rows.append([f"{world}: {key}", *cells])
        return rows

    def notes(self) -> list[str]:
        """Return the lines below the tables."""
        lines = []
        if self.worlds:
            counts = sorted({one.rounds for one in self.worlds.values()})
            seeds = {
                len(out.utility) for one in self.worlds.values() for out in one.outcomes.values()
            }
            worlds = "1 world" if len(self.worlds) == 1 else f"{len(self.worlds)} worlds"
            lines.append(
                f"{worlds}, {' and '.join(map(str, counts))} rounds, "
                f"{seeds_text(max(seeds))}: share of the best policy's utility, mean ± 95 %, "
                "* the best; coverage: the worst seed"
            )
        unfed = {
            f"{name} in {world}": why
            for world, one in self.worlds.items()
            for name, why in one.skipped.items()
        }
        skipped = {**self.skipped, **unfed}
        return [*lines, *(f"skipped {name}: {why}" for name, why in skipped.items())]

    def _world(self, world: str, one: Played) -> dict[str, object]:
        entries = {}
        for name in one.policies:
            share, outcome = self.share(world, name), one.outcomes[name]
            oracle = one.share(name, REFERENCE) if REFERENCE in one.outcomes else None
            entries[name] = {
                "utility": figure(outcome.utility).record(),
                "share": share.record() if share else None,
                "of_oracle_p": oracle.record() if oracle else None,
                "rank": one.rank(name),
                **{key: figure(outcome.coverage.get(key, ())).record() for key in COVERAGE},
            }
        return {
            "about": one.about,
            "rounds": one.rounds,
            "best": one.best,
            "policies": entries,
            "skipped": dict(one.skipped),
        }

    def _policy(self, name: str) -> dict[str, object]:
        least, world = self.least_share(name)
        return {
            "worlds": len(self._shares(name)),
            "mean_share": self.mean_share(name),
            "least_share": least,
            "least_in": world,
            "mean_rank": self.mean_rank(name),
        }


def _text(share: Figure | None) -> str:
    return "-" if share is None else share.text(3)


def _worst(outcome: Outcome | None, key: str) -> str:
    values = () if outcome is None else outcome.coverage.get(key, ())
    known = [value for value in values if value is not None]
    return f"{max(known):.{3 if key == 'never_rate' else 0}f}" if known else "-"
