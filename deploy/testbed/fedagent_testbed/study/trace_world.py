"""Links out of recorded traces: what a real network did, replayed from a random moment on.

A pair keeps its trace, its moment and its route for the whole run. What a policy sees is
the rate that the last round's transfer would have had, as a real agent measures it; what
happens is the trace of now. A trace has no chance in it, so `Truth.chance` is 0 or 1.
"""

import functools
import os
import tarfile
import zlib
from pathlib import Path

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_task.errors import DatasetError
from fedagent_task.readers import DATA_VARIABLE
from fedagent_testbed.traces import (
    RateTrace,
    RttMatrix,
    TraceError,
    read_mahimahi,
    read_planetlab,
    read_rate_archive,
    read_seattle,
)

from .population import Population
from .spec import TestbedRecipe
from .world import Times, outcome

FEATURES = ("compute", "download_bps", "rtt_s", "upload_bps")
_LINKS = "name a .tar.gz of rates, or a folder of mahimahi files (.up, .down, .gz)"
_ARCHIVES = (".tar", ".tar.gz", ".tgz")
_OTHERS = (".csv", ".json", ".npz", *_ARCHIVES)


class TraceWorld:
    """Clients whose links follow recorded traces.

    Args:
        recipe: Its `traces`, `work`, `rounds`, `churn` and `liars`.
        seed: Of who has which trace, and of compute.

    Raises:
        DatasetError: The files are not there, or not what they should be.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._recipe, self._seed = recipe, seed
        self._people = Population(recipe, seed)
        self._traces = _rate_traces(_path(recipe.traces.links))
        pairs = len(self._people.pair_place)
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1 << 21,)))
        self._down, self._up = rng.integers(0, len(self._traces), (2, pairs))
        self._start = rng.uniform(0.0, 1e5, pairs)
        self._rtt = _rtt_of(recipe.traces.rtt, pairs, rng)
        self._budget = np.full(recipe.edges, recipe.budget_micro, dtype=np.int64)
        self.times: Times | None = None

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people, work = self._recipe, self._people, self._recipe.work
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        compute = rng.uniform(*work.compute, len(people.alive))
        true_compute = np.where(people.liar, compute / recipe.liars.factor, compute)
        place = people.pair_place
        now = self._start + round_ * recipe.traces.round_s
        before = now - recipe.traces.round_s
        down, up = work.download_mbit * 1e6, work.upload_mbit * 1e6
        rtt = self._rtt
        lc = (work.work / true_compute)[place]
        dt = self._seconds(self._down, down, now) + rtt
        ut = self._seconds(self._up, up, now + dt + lc) + rtt
        times = self.times = Times(dt, lc, ut)
        features = np.stack(
            (
                compute[place],
                down / self._seconds(self._down, down, before),
                rtt,
                up / self._seconds(self._up, up, before),
            ),
            axis=1,
        ).astype(np.float32)
        arrives = times.tau_s <= recipe.rounds.deadline_s
        return RoundView(
            round=round_,
            pair_client=people.alive[place].astype(np.int32),
            pair_edge=people.pair_edge,
            pair_features=features,
            feature_names=FEATURES,
            client_price=people.prices(compute),
            client_available=people.available(),
            edge_budget=self._budget,
            deadline_s=recipe.rounds.deadline_s,
            model_bytes=round(down / 8),
            truth=Truth(arrives=arrives, chance=arrives.astype(np.float64), tau_s=times.tau_s),
        )

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Say how these pairs ended."""
        assert self.times is not None, "a round is seen before it is played"
        rounds = self._recipe.rounds
        return outcome(
            view,
            pairs,
            self.times,
            min_updates=rounds.min_updates,
            max_wait_s=rounds.max_wait_s,
        )

    def _seconds(self, trace: IntArray, bits: float, start: FloatArray) -> FloatArray:
        """Return how long every pair's transfer takes, float64[P]."""
        out = np.empty(len(trace))
        for k in np.unique(trace).tolist():
            mine = trace == k
            out[mine] = self._traces[k].seconds_for(bits, start[mine])
        return np.maximum(out, 1e-6)


def _is_link(path: Path) -> bool:
    """Whether a file is named like one of mahimahi: *.up, *.down, or *.gz of no other kind."""
    name = path.name.lower()
    plain = name.removesuffix(".gz")
    packed = plain != name and not name.endswith(_OTHERS) and not plain.endswith(_OTHERS)
    return path.is_file() and (packed or plain.endswith((".up", ".down")))


def _is_archive(path: Path) -> bool:
    """Whether a file is a tar, or was one before it was damaged."""
    try:
        return path.name.lower().endswith(_ARCHIVES) or tarfile.is_tarfile(path)
    except (OSError, EOFError, zlib.error):
        return False


def _path(name: str) -> Path:
    folder = os.environ.get(DATA_VARIABLE, "")
    if not folder:
        raise DatasetError(name, "needs a folder of data", f"set {DATA_VARIABLE} to it")
    path = Path(folder) / name
    if not path.exists():
        raise DatasetError(name, f"is not in {DATA_VARIABLE}", "see docs/testbed.md, Data")
    return path


@functools.lru_cache(maxsize=2)
def _rate_traces(path: Path) -> tuple[RateTrace, ...]:
    """Read an archive of rates, a folder of mahimahi links, or one such link."""
    try:
        if path.is_dir():
            traces = tuple(read_mahimahi(file) for file in sorted(path.iterdir()) if _is_link(file))
        elif _is_link(path):
            traces = (read_mahimahi(path),)
        elif _is_archive(path):
            traces = read_rate_archive(path)
        else:
            raise DatasetError(path.name, "is no recording of links", _LINKS)
    except TraceError as error:
        raise DatasetError(path.name, str(error), "fetch the file again") from error
    if not traces:
        raise DatasetError(path.name, "holds no trace", "see docs/testbed.md, Data")
    return traces


def _rtt_of(name: str, pairs: int, rng: np.random.Generator) -> FloatArray:
    """Return the round-trip time of every pair's route, float64[P] seconds."""
    if not name:
        return np.zeros(pairs)
    path = _path(name)
    try:
        matrix: RttMatrix = read_seattle(path) if "seattle" in name else read_planetlab(path)
    except TraceError as error:
        raise DatasetError(name, str(error), "fetch the file again") from error
    known = matrix.seconds[0][np.isfinite(matrix.seconds[0]) & (matrix.seconds[0] > 0)]
    return np.asarray(rng.choice(known, pairs), dtype=np.float64)
