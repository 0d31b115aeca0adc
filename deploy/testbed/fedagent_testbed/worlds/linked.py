"""Worlds of clients that see edges: what they share, those of recorded links and of chances."""

from abc import ABC, abstractmethod
from dataclasses import replace

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import BoolArray, Ending, FloatArray, IntArray
from fedagent_task.errors import RecipeError
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.traces import read_links, recorded

from .base import NEVER, Times, outcome, spawned_rng
from .population import Failed, Population

_MISSING = (1 << 20) + 6
ROUND_S = 10.0
"""Seconds of trace between two rounds."""
_FIRST = 0.2
"""Share of the deadline before which no update comes by a chance."""
_BEST, _WIDTH = 0.95, 0.2
"""Chance in the middle of the range of compute; width of the bump, as a share of that range."""
_STAGES = (0.1, 0.7, 0.2)
"""Shares of its exchange time: download, computation, upload."""


class LinkedWorld(ABC):
    """What worlds of pairs share; `times` and what fails are of the last view."""

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._people = Population(recipe, seed)
        self._failed: Failed | None = None
        self._budget = np.full(recipe.world.edges, recipe.budget_micro, dtype=np.int64)
        self.times: Times | None = None

    @abstractmethod
    def view(self, round_: int) -> RoundView:
        """Draw a round."""

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return how these pairs ended."""
        assert self.times is not None, "a round is seen before it is played"
        limits = self._recipe.rounds
        feedback = outcome(
            view, pairs, self.times, min_updates=limits.min_updates, max_wait_s=limits.max_wait_s
        )
        if self._failed is None:
            return feedback
        cause = self._failed.cause[pairs]
        ending = np.where(cause == Ending.IN_TIME, feedback.endings, cause)
        return replace(feedback, ending=ending.astype(np.int8))

    def _computation(self, compute: FloatArray) -> FloatArray:
        """Return the seconds of every pair, float64[P]; some have less than they claim."""
        people = self._people
        seconds = self._recipe.world.work.work / compute * people.slowness() + people.extra_s()
        return np.asarray(seconds[people.pair_place], dtype=np.float64)

    def _slower(self) -> FloatArray | float:
        """Return what transfers of a pair take longer by at an edge with bad links, float64[P]."""
        slower = self._recipe.world.bad_edge.slower
        if slower == 1.0:
            return slower
        return np.where(self._people.pair_edge == self._people.bad_edge, slower, 1.0)

    def _shown(
        self,
        round_: int,
        features: dict[str, FloatArray],
        compute: FloatArray,
        times: Times,
        truth: Truth,
    ) -> RoundView:
        people = self._people
        self._failed = failed = people.failed()
        if failed is not None:
            fails = failed.cause != Ending.IN_TIME
            times = replace(times, ut_s=np.where(fails, NEVER, times.ut_s))
            truth = Truth(
                arrives=truth.arrives & ~fails,
                chance=truth.chance * failed.safe,
                tau_s=np.where(failed.safe > 0, truth.tau_s, NEVER),
            )
        self.times = times
        return RoundView(
            round=round_,
            pair_client=people.alive[people.pair_place].astype(np.int32),
            pair_edge=people.pair_edge,
            pair_features=self._reported(features),
            feature_names=tuple(name for name in features if self._is_reported(name)),
            client_price=self._prices(compute),
            client_available=self._available(),
            edge_budget=self._budget,
            deadline_s=self._recipe.rounds.deadline_s,
            model_bytes=round(self._recipe.world.work.download_mbit * 1e6 / 8),
            truth=truth,
            client_starts=people.starts(),
        )

    def _prices(self, compute: FloatArray) -> IntArray:
        return self._people.prices(compute)

    def _available(self) -> BoolArray:
        return self._people.available()

    def _is_reported(self, name: str) -> bool:
        return name not in self._recipe.world.missing.columns

    def _reported(self, features: dict[str, FloatArray]) -> "np.typing.NDArray[np.float32]":
        missing = self._recipe.world.missing
        if absent := set(missing.columns) - features.keys():
            hint = f"there are {', '.join(features)}"
            raise RecipeError("world.missing.columns", f"has {min(absent)}, no feature", hint)
        columns = [column for name, column in features.items() if self._is_reported(name)]
        shown = np.array(columns, dtype=np.float32).reshape(len(columns), -1).T.copy()
        shown.shape = (len(self._people.pair_place), len(columns))
        if missing.share:
            rng = spawned_rng(self._seed, _MISSING, self._people.round)
            shown[rng.random(shown.shape) < missing.share] = np.nan
        return shown


class TraceWorld(LinkedWorld):
    """Clients whose links follow recorded traces: what a real network did, from a random moment on.

    A pair keeps its trace, its moment and its route for the whole run. What a policy sees is
    the rate that the last round's transfer would have had, as a real agent measures it; what
    happens is the trace of now. A trace has no chance in it, so `Truth.chance` is 0 or 1 where
    nothing else fails.

    Raises:
        DatasetError: The files are not there, or not what they should be.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        super().__init__(recipe, seed)
        self._traces = recorded(read_links, recipe.world.traces.links, folder=True)
        pairs = len(self._people.pair_place)
        rng = spawned_rng(seed, 1 << 21)
        self._down, self._up = rng.integers(0, len(self._traces), (2, pairs))
        self._start = rng.uniform(0.0, 1e5, pairs)
        self._ahead: list[tuple[int, FloatArray]] = [(-1, self._start)] * 2

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people, work = self._recipe, self._people, self._recipe.world.work
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        compute = rng.uniform(*work.compute, len(people.alive))
        now = self._start + round_ * ROUND_S
        down, up = work.download_mbit * 1e6, work.upload_mbit * 1e6
        lc = self._computation(compute)
        slower = self._slower()
        down_before, up_before = self._alone(0, round_ - 1), self._alone(1, round_ - 1)
        dt = self._alone(0, round_) * slower
        ut = self._seconds(self._up, up, now + dt + lc) * slower
        times = Times(dt, lc, ut)
        features = {
            "compute": compute[people.pair_place],
            "download_bps": down / (down_before * slower),
            "rtt_s": np.zeros(len(people.pair_place)),
            "upload_bps": up / (up_before * slower),
        }
        arrives = times.tau_s <= recipe.rounds.deadline_s
        truth = Truth(arrives=arrives, chance=arrives.astype(np.float64), tau_s=times.tau_s)
        return self._shown(round_, features, compute, times, truth)

    def _alone(self, way: int, round_: int) -> FloatArray:
        """Return the seconds of a transfer that begins with a round, 0 down and 1 up, float64[P].

        Several rounds are computed at once: a trace is searched for all of them in one go.
        """
        size = max(1, min(64, (1 << 20) // max(1, len(self._start))))
        first = round_ // size * size
        if self._ahead[way][0] != first:
            trace = (self._down, self._up)[way]
            work = self._recipe.world.work
            bits = (work.download_mbit, work.upload_mbit)[way] * 1e6
            rounds = np.arange(first, first + size)[:, None] * ROUND_S
            self._ahead[way] = first, self._seconds(trace, bits, self._start + rounds)
        seconds: FloatArray = self._ahead[way][1][round_ - first]
        return seconds

    def _seconds(self, trace: IntArray, bits: float, start: FloatArray) -> FloatArray:
        """Return seconds of transfers that begin at float64[..., P], of that shape."""
        out = np.empty(start.shape)
        for k in np.unique(trace).tolist():
            mine = trace == k
            out[..., mine] = self._traces[k].seconds_for(bits, start[..., mine])
        return np.maximum(out, 1e-6)


class ChanceWorld(LinkedWorld):
    """No link explains what arrives: a chance of the client's own does, or its compute alone.

    With ``own`` the features are noise. With ``compute`` only the middle of the range succeeds: a
    device with little is too slow, one with much is throttled for its heat. An update in time
    takes a fifth of the deadline to all of it, evenly, any other one to three times the deadline.
    """

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people = self._recipe, self._people
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        pairs, deadline = len(people.pair_place), recipe.rounds.deadline_s
        compute = rng.uniform(*recipe.world.work.compute, len(people.alive))
        own = self._own(compute)[people.pair_place]
        extra = people.extra_s()[people.pair_place]
        comes, when = rng.random(pairs) < own, rng.random(pairs)
        tau = deadline * np.where(comes, _FIRST + (1.0 - _FIRST) * when, 1.0 + 2.0 * when)
        dt, lc, ut = (share * tau for share in _STAGES)
        times = Times(dt, lc + extra, ut)
        features = {
            "compute": compute[people.pair_place],
            "download_bps": 10.0 ** rng.uniform(4.0, 7.0, pairs),
        }
        # Who takes longer by a start is in time only if it comes early enough.
        early = np.clip(1.0 - extra / deadline / (1.0 - _FIRST), 0.0, 1.0)
        truth = Truth(
            arrives=times.tau_s <= deadline,
            chance=own * early,
            tau_s=deadline * (2.0 - own * (1.5 - _FIRST / 2.0)) + extra,
        )
        return self._shown(round_, features, compute, times, truth)

    def _own(self, compute: FloatArray) -> FloatArray:
        """Return float64[n], the chance of each client's update."""
        chances, people = self._recipe.world.chances, self._people
        if chances.by == "own":
            low, high = chances.own
            drawn = low + (high - low) * people.trait("factor")
            return np.where(people.some("sure", chances.sure), 1.0, drawn)
        low, high = self._recipe.world.work.compute
        middle, width = (low + high) / 2.0, max(_WIDTH * (high - low), 1e-9)
        bump = np.exp(-0.5 * ((compute - middle) / width) ** 2)
        return np.asarray(_BEST * bump, dtype=np.float64)
