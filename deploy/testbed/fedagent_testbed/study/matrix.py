"""Policies x worlds: what share of the best a policy has in each, and its rank. Numbers only."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property

import numpy as np

from .comparison import COVERAGE, Figure, figure, seeds_text

POLICIES = (
    *("adaptive", "linucb", "cocs", "cocs-paper", "cucb", "fair", "rbcs-f", "fastest", "random"),
    *("cheapest", "round-robin"),
)
"""Whom a matrix compares if nobody is named: all that need neither opinions nor the truth."""
REFERENCE = "oracle-p"
UNKNOWN = Figure(None, None, ())


@dataclass(frozen=True, slots=True)
class Played:
    """A world, and the figures of its comparison by policy, the reference among them."""

    about: str
    rounds: int
    figures: Mapping[str, Mapping[str, Figure]]
    skipped: Mapping[str, str] = field(default_factory=dict)  # policies, with the reason

    def mean(self, name: str) -> float:
        """Return the mean utility over the seeds."""
        return self.figures[name]["utility"].mean or 0.0

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies, without the reference."""
        return tuple(name for name in self.figures if name != REFERENCE)

    @property
    def best(self) -> str:
        """The policy with the largest mean utility, but for the reference."""
        return max(self.policies, key=self.mean)

    def is_best(self, name: str) -> bool:
        """Return whether no policy has a larger mean utility; equals are all of them best."""
        return name in self.policies and self.mean(name) == self.mean(self.best)

    def share(self, name: str, of: str) -> Figure:
        """Return utility over another's, seed by seed; unknown of one that did not play."""
        if name not in self.figures or of not in self.figures:
            return UNKNOWN
        both = [self.figures[one]["utility"].per_seed for one in (name, of)]
        # A world in which the other earns nothing is everybody's.
        shares = [
            mine / whole if mine and whole else float(not whole)
            for mine, whole in zip(*both, strict=True)
        ]
        return figure(shares)

    def rank(self, name: str) -> float:
        """Return 1 for the largest mean utility; equals share the mean of their ranks."""
        others = np.array([self.mean(other) for other in self.policies])
        mine = self.mean(name)
        return float((others > mine).sum() + ((others == mine).sum() + 1) / 2)

    def record(self) -> dict[str, object]:
        """Return it as JSON data."""
        return {
            "about": self.about,
            "rounds": self.rounds,
            "best": self.best,
            "policies": {
                name: {
                    "share": self.share(name, self.best).record(),
                    "of_oracle_p": self.share(name, REFERENCE).record(),
                    "rank": self.rank(name),
                    **{key: self.figures[name][key].record() for key in ("utility", *COVERAGE)},
                }
                for name in self.policies
            },
            "skipped": dict(self.skipped),
        }


@dataclass(frozen=True, slots=True)
class Standing:
    """A policy over the worlds in which it plays; `least_in` is the world of the least share."""

    worlds: int
    mean_share: float
    least_share: float
    least_in: str
    mean_rank: float


@dataclass(frozen=True, eq=False, repr=False)
class Matrix:
    """Worlds that were played, and why others were not."""

    worlds: Mapping[str, Played]
    skipped: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Matrix of {len(self.worlds)} worlds: {', '.join(self.policies)}>"

    @cached_property
    def standings(self) -> dict[str, Standing]:
        """The policies that played somewhere, the best mean share first."""
        found = dict[str, Standing]()
        for name in dict.fromkeys(name for one in self.worlds.values() for name in one.policies):
            here = {world: one for world, one in self.worlds.items() if name in one.policies}
            shares = {world: one.share(name, one.best).mean or 0.0 for world, one in here.items()}
            least = min(shares, key=lambda world: (shares[world], world))
            ranks = [one.rank(name) for one in here.values()]
            mean, rank = float(np.mean(list(shares.values()))), float(np.mean(ranks))
            found[name] = Standing(len(here), mean, shares[least], least, rank)
        return dict(sorted(found.items(), key=lambda item: -item[1].mean_share))

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies in the order of their mean shares."""
        return tuple(self.standings)

    def share(self, world: str, name: str) -> Figure:
        """Return the share of the best policy's utility in a world."""
        return self.worlds[world].share(name, self.worlds[world].best)

    def record(self) -> dict[str, object]:
        """Return everything as JSON data, by the reference in `docs/testbed.md`."""
        return {
            "worlds": {name: one.record() for name, one in self.worlds.items()},
            "policies": {name: asdict(one) for name, one in self.standings.items()},
            "skipped": dict(self.skipped),
        }

    def rows(self) -> list[list[str]]:
        """Return heads, a row of shares per world, and the means; * is the best.

        The last column is what the best has of the utility of the reference.
        """
        rows = [["world", *self.policies, f"best of {REFERENCE}"]]
        for world, one in self.worlds.items():
            cells = (
                self.share(world, name).text(3) + ("*" if one.is_best(name) else "")
                for name in self.policies
            )
            rows.append([world, *cells, one.share(one.best, REFERENCE).text(3)])
        every = self.standings.values()
        rows.append(["mean share", *(f"{one.mean_share:.3f}" for one in every), ""])
        rows.append(["least share", *(f"{one.least_share:.3f}" for one in every), ""])
        rows.append(["mean rank", *(f"{one.mean_rank:.1f}" for one in every), ""])
        return rows

    def coverage_rows(self) -> list[list[str]]:
        """Return heads, and a row per world and figure of coverage known there: the worst seed."""
        rows = [["coverage", *self.policies]]
        for world, one in self.worlds.items():
            for key in COVERAGE:
                figures = [one.figures.get(name, {}).get(key, UNKNOWN) for name in self.policies]
                digits = 3 if key == "never_rate" else 0
                cells = [_worst(found, digits) for found in figures]
                if set(cells) != {"-"}:
                    rows.append([f"{world}: {key}", *cells])
        return rows

    def notes(self) -> list[str]:
        """Return the lines below the tables."""
        lines, skipped = [], dict(self.skipped)
        for world, one in self.worlds.items():
            skipped |= {f"{name} in {world}": why for name, why in one.skipped.items()}
        if self.worlds:
            played = list(self.worlds.values())
            counts = " and ".join(map(str, sorted({one.rounds for one in played})))
            seeds = len(played[0].figures[played[0].best]["utility"].per_seed)
            worlds = "1 world" if len(played) == 1 else f"{len(played)} worlds"
            lines.append(
                f"{worlds}, {counts} rounds, {seeds_text(seeds)}: share of the best policy's "
                "utility, mean ± 95 %, * the best; coverage: the worst seed"
            )
        return [*lines, *(f"skipped {name}: {why}" for name, why in skipped.items())]


def _worst(found: Figure, digits: int) -> str:
    known = [value for value in found.per_seed if value is not None]
    return f"{max(known):.{digits}f}" if known else "-"
