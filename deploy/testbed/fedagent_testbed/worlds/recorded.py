"""Rounds that real devices had, drawn by the seed: `busy-demo.json`, demos on a busy machine."""

import functools
import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies import Feedback, RoundView, Truth
from fedagent_coordinator.policies.base import BoolArray, Ending, FloatArray, IntArray
from fedagent_testbed.recipe import TestbedRecipe

from .base import NEVER, Times, spawned_rng
from .linked import LinkedWorld

_FILE = Path(__file__).parent / "busy-demo.json"
_BLOCK = 10
"""Rounds that stay together, in all devices: what ails them has its length."""
_DEAL = (1 << 20) + 9
_ABSENT = -1


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """Runs x rounds x devices, and the features' names; NaN where nothing is known."""

    names: tuple[str, ...]
    features: FloatArray  # float64[R, T, D, F]
    price_micro: IntArray  # int64[R, D]
    ending: npt.NDArray[np.int8]  # int8[R, T, D], an `Ending`, or -1: it was not there
    stages_s: FloatArray  # float64[R, T, D, 3]: whole exchange, download, computation


class RecordedWorld(LinkedWorld):
    """A demo on a busy machine: as many devices, at one edge, or several times them.

    The run begins with the first rounds of a recorded one, cold start and all; then blocks of ten
    rounds follow, of any run, from round 11 on. A client is the same device in all of them.
    `Truth.chance` is the device's share of successes over all that could have been dealt.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        super().__init__(recipe, seed)
        self._tape = recording()
        self._now = (0, 0)

    def view(self, round_: int) -> RoundView:
        """Deal a round."""
        people, tape = self._people, self._tape
        people.begin(round_)
        device, extra = self._devices(), people.extra_s()[people.pair_place]
        runs, ats = self._possible(round_)
        block = spawned_rng(self._seed, _DEAL, (round_ - 1) // _BLOCK)
        k = int(block.integers(len(runs)))
        self._now = run, at = int(runs[k]), int(ats[k])
        seconds = tape.stages_s[runs[:, None], ats[:, None], device, 0] + extra
        ending = tape.ending[runs[:, None], ats[:, None], device]
        wins = (ending == Ending.IN_TIME) & (seconds <= self._recipe.rounds.deadline_s)
        chance = wins.sum(axis=0) / np.maximum((ending != _ABSENT).sum(axis=0), 1)
        usual = np.median(np.where(wins, seconds, NEVER), axis=0)
        chance = np.where(ending[k] != _ABSENT, chance, 0.0)
        truth = Truth(arrives=wins[k], chance=chance, tau_s=usual)
        tau, dt, lc = np.nan_to_num(tape.stages_s[run, at, device]).T
        came = np.isin(ending[k], (Ending.IN_TIME, Ending.LATE))
        times = Times(dt, lc + extra, np.where(came, np.maximum(tau - dt - lc, 0.0), NEVER))
        columns = tape.features[run, at, device].T
        features = dict(zip(tape.names, columns, strict=True))
        return self._shown(round_, features, np.ones(len(people.alive)), times, truth)

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return how these pairs ended; with what was recorded where an update did not come."""
        feedback, (run, at) = super().play(view, pairs), self._now
        recorded = self._tape.ending[run, at, self._devices()[pairs]]
        keeps = (feedback.endings == Ending.MISSED) & (recorded > Ending.MISSED)
        return replace(feedback, ending=np.where(keeps, recorded, feedback.endings))

    def _devices(self) -> IntArray:
        people = self._people
        device: IntArray = people.alive[people.pair_place] % self._tape.ending.shape[2]
        return device

    def _possible(self, round_: int) -> tuple[IntArray, IntArray]:
        """Return runs and rounds, int64[K] each, of which this round may be any, equally likely."""
        runs, rounds, _ = self._tape.ending.shape
        block, offset = divmod(round_ - 1, _BLOCK)
        starts = np.arange(_BLOCK, rounds - _BLOCK + 1) if block else np.zeros(1, dtype=np.int64)
        return np.repeat(np.arange(runs), len(starts)), np.tile(starts, runs) + offset

    def _prices(self, compute: FloatArray) -> IntArray:
        del compute  # prices are recorded too
        people, price = self._people, np.zeros(self._people.total, dtype=np.int64)
        own = self._tape.price_micro[self._now[0], people.alive % self._tape.ending.shape[2]]
        late = self._recipe.world.late
        factor = np.where(people.some("late", late.share), late.price_factor, 1.0)
        price[people.alive] = np.round(own * factor)
        return price

    def _available(self) -> BoolArray:
        people, there = self._people, np.zeros(self._people.total, dtype=np.bool_)
        ending = self._tape.ending[self._now]
        there[people.alive] = (ending != _ABSENT)[people.alive % len(ending)]
        return there


@functools.cache
def recording() -> Recording:
    """Read the recording that comes with the testbed."""
    table = json.loads(_FILE.read_text(encoding="utf-8"))
    runs = table["runs"]
    names = tuple(sorted({name for run in runs for name in run["features"]}))
    rounds = min(len(run["ending"]) for run in runs)
    features = np.full((len(runs), rounds, table["devices"], len(names)), np.nan)
    for r, run in enumerate(runs):
        for name, devices in run["features"].items():
            for d, changes in enumerate(devices):
                for at, value in zip(changes[::2], changes[1::2], strict=True):
                    features[r, at - 1 :, d, names.index(name)] = np.nan if value is None else value
    ending = [[_endings(row) for row in run["ending"][:rounds]] for run in runs]
    stages = [[run[key][:rounds] for key in ("tau_ms", "dt_ms", "lc_ms")] for run in runs]
    return Recording(
        names=names,
        features=features,
        price_micro=np.array([run["price_micro"] for run in runs], dtype=np.int64),
        ending=np.array(ending, dtype=np.int8),
        stages_s=np.moveaxis(np.array(stages, dtype=np.float64), 1, -1) / 1e3,
    )


def _endings(row: str) -> list[int]:
    return [_ABSENT if one == "." else int(one) for one in row]
