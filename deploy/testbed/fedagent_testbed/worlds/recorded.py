"""Links out of recorded traces: what a real network did, replayed from a random moment on.

A pair keeps its trace, its moment and its route for the whole run. What a policy sees is
the rate that the last round's transfer would have had, as a real agent measures it; what
happens is the trace of now. A trace has no chance in it, so `Truth.chance` is 0 or 1.
"""

import numpy as np

from fedagent_coordinator.policies import Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.traces.sources import link_traces, rtt_matrix

from .base import Times
from .linked import LinkedWorld


class TraceWorld(LinkedWorld):
    """Clients whose links follow recorded traces.

    Raises:
        DatasetError: The files are not there, or not what they should be.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        super().__init__(recipe, seed)
        self._traces = link_traces(recipe.traces.links)
        pairs = len(self._people.pair_place)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1 << 21,)))
        self._down, self._up = rng.integers(0, len(self._traces), (2, pairs))
        self._start = rng.uniform(0.0, 1e5, pairs)
        self._rtt = _rtt_of(recipe.traces.rtt, pairs, rng)

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people, work = self._recipe, self._people, self._recipe.work
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        compute = rng.uniform(*work.compute, len(people.alive))
        now = self._start + round_ * recipe.traces.round_s
        before = now - recipe.traces.round_s
        down, up = work.download_mbit * 1e6, work.upload_mbit * 1e6
        rtt = self._rtt
        lc = self._computation(compute)
        dt = self._seconds(self._down, down, now) + rtt
        ut = self._seconds(self._up, up, now + dt + lc) + rtt
        times = self.times = Times(dt, lc, ut)
        features = {
            "compute": compute[people.pair_place],
            "download_bps": down / self._seconds(self._down, down, before),
            "rtt_s": rtt,
            "upload_bps": up / self._seconds(self._up, up, before),
        }
        arrives = times.tau_s <= recipe.rounds.deadline_s
        truth = Truth(arrives=arrives, chance=arrives.astype(np.float64), tau_s=times.tau_s)
        return self._shown(round_, features, compute, truth)

    def _seconds(self, trace: IntArray, bits: float, start: FloatArray) -> FloatArray:
        """Return how long every pair's transfer takes, float64[P]."""
        out = np.empty(len(trace))
        for k in np.unique(trace).tolist():
            mine = trace == k
            out[mine] = self._traces[k].seconds_for(bits, start[mine])
        return np.maximum(out, 1e-6)


def _rtt_of(name: str, pairs: int, rng: np.random.Generator) -> FloatArray:
    """Return the round-trip time of every pair's route, float64[P] seconds."""
    if not name:
        return np.zeros(pairs)
    first = rtt_matrix(name).seconds[0]
    known = first[np.isfinite(first) & (first > 0)]
    return np.asarray(rng.choice(known, pairs), dtype=np.float64)
