"""Does `adaptive` forecast what happens: reliability of its forecasts in several worlds.

    python -m bench.calibration                       # rows
    python -m bench.calibration --plots docs/policies/img

Ordered pairs of all rounds after the first fifty, by tenths of the forecast: what share arrived.
`error` is the mean distance of the two, weighed by orders (expected calibration error); `skill`
is 1 - Brier score / that of a forecaster who knows the mean alone.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedagent_coordinator.policies import Purpose, create, round_rng
from fedagent_coordinator.policies.base import BoolArray, FloatArray
from fedagent_testbed.study import load_recipe, make_world

from .plots import BLUE, FOLDER, GREY, blank, write
from .rows import Row, show

WORLDS = ("mnist-160", "mnist-160-live", "static-live", "late-cheap", "dying", "flips")
MORE = ("bad-edge", "correlated", "middling", "noise", "cold", "liars")
BINS, BEGIN = 10, 50
MOST = 0.08
"""The error that passes."""


@dataclass(frozen=True, eq=False)
class Orders:
    """What was forecast of every order, float64[S], and whether it arrived, bool[S]."""

    forecast: FloatArray
    arrived: BoolArray

    def bins(self) -> list[tuple[float, float, int]]:
        """Return the mean forecast, the share that arrived and the orders of each tenth."""
        at = np.minimum((self.forecast * BINS).astype(np.int64), BINS - 1)
        rows = [at == b for b in range(BINS) if (at == b).any()]
        return [
            (float(self.forecast[r].mean()), float(self.arrived[r].mean()), int(r.sum()))
            for r in rows
        ]

    def error(self) -> float:
        """Return the expected calibration error."""
        return sum(abs(p - x) * n for p, x, n in self.bins()) / len(self.forecast)

    def skill(self) -> float:
        """Return the share of the Brier score of the mean that the forecasts save."""
        mean = self.arrived.mean()
        brier = ((self.forecast - self.arrived) ** 2).mean()
        return float(1.0 - brier / max(mean * (1 - mean), 1e-9))


def orders(name: str, seeds: int, rounds: int) -> Orders:
    """Play a world with `adaptive`."""
    recipe = load_recipe(name, [f"rounds.count={rounds}"])
    forecast, arrived = list[FloatArray](), list[BoolArray]()
    for seed in range(seeds):
        world, policy = make_world(recipe, seed), create("adaptive")
        for t in range(1, rounds + 1):
            view = world.view(t)
            seen = replace(view, truth=None)
            selection = policy.select(seen, round_rng(seed, t, Purpose.SELECT))
            feedback = world.play(view, selection.pairs)
            policy.learn(replace(feedback, view=seen))
            if t > BEGIN:
                forecast.append(selection.scores[feedback.pairs])
                arrived.append(feedback.X)
    return Orders(np.concatenate(forecast), np.concatenate(arrived))


def row(name: str, found: Orders) -> Row:
    return {
        "bench": "calibration",
        "world": name,
        "orders": len(found.forecast),
        "error": round(found.error(), 4),
        "skill": round(found.skill(), 3),
        "bins": [[round(p, 3), round(x, 3), n] for p, x, n in found.bins()],
        "bar": f"<= {MOST}",
        "met": found.error() <= MOST,
    }


def rows(seeds: int = 3, rounds: int = 500) -> Iterator[Row]:
    return (row(name, orders(name, seeds, rounds)) for name in (*WORLDS, *MORE))


def draw(every: Sequence[tuple[str, Orders]], folder: Path) -> None:
    """Write the reliability diagrams; dots are small below 0.05 of all orders, large from 0.3."""
    figure, axes = blank(6, rows=2)
    for panel, (name, found) in zip(axes, every, strict=True):
        bins = found.bins()
        panel.plot([0, 1], [0, 1], color=GREY, linestyle="--", linewidth=1)
        for size, least, most in ((3, 0.0, 0.05), (6, 0.05, 0.3), (10, 0.3, 1.01)):
            some = [(p, x) for p, x, n in bins if least <= n / len(found.forecast) < most]
            panel.plot([p for p, _ in some], [x for _, x in some], "o", color=BLUE, ms=size)
        panel.set_title(f"{name}: error {found.error():.3f}")
        panel.set_xlabel("forecast")
        panel.set_ylabel("arrived")
        panel.set_xlim(0, 1)
        panel.set_ylim(0, 1)
        panel.set_xticks([0, 0.5, 1])
        panel.set_yticks([0, 0.5, 1])
    numbers: dict[str, object] = {name: round(found.error(), 4) for name, found in every}
    write("adaptive-calibration", lambda: (figure, numbers), folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--world", action="append")
    parser.add_argument("--plots", type=Path, nargs="?", const=FOLDER)
    chosen = parser.parse_args()
    if not chosen.plots:
        names = chosen.world or (*WORLDS, *MORE)
        show(row(name, orders(name, chosen.seeds, chosen.rounds)) for name in names)
        return
    every = [(name, orders(name, chosen.seeds, chosen.rounds)) for name in WORLDS]
    draw(every, chosen.plots)


if __name__ == "__main__":
    main()
