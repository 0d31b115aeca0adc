"""A world learnt from a recorded run: its views dealt anew, and a model of how orders end.

Views (who reaches which edge, rates, prices, willingness) are those that were recorded, in blocks
of ten rounds, so that what belongs together stays together. How an order ends was recorded of few
pairs only: `fit_world` fits what is drawn from here.
"""

import functools
import json
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from fedagent_coordinator.policies import Feedback, RoundView, Truth
from fedagent_coordinator.policies.base import BoolArray, Ending, FloatArray, IntArray
from fedagent_task.errors import RecipeError
from fedagent_testbed.recipe import TestbedRecipe

from .base import arrived, spawned_rng

BLOCK = 10
"""Rounds that stay together: what ails devices lasts for some."""
MOST_BYTES = 512 * 1024**2
_DEAL, _DRAW = (1 << 20) + 10, (1 << 20) + 11
_KEY = "fedagent-world"
_RECORDS = (0.02, 0.98)


@dataclass(frozen=True, slots=True, eq=False)
class Learnt:
    """What was learnt; R rounds, N clients, M edges, F features, P pairs in a round.

    Attributes:
        start: int64[R + 1], where the pairs of each round begin in the columns of pairs.
        beta: float64[2F + 4], of the log odds that an order is in time (`design`).
        client, edge: float64[N], float64[M], shares of orders in time; `pair`, float64[K], of
            the pairs whose number is in `pair_key`, int64[K], sorted.
        tau_beta: float64[F + 2], of the log of an update's seconds; `tau_sd` its spread.
        client_tau: float64[N], mean log of a client's seconds.
        ending, ending_s, void, used: How orders ended that were not in time, K of them.
        together: Correlations: of one edge's orders in a round, of one client's over rounds, and
            what of the latter is left from round to round.
    """

    names: tuple[str, ...]
    deadline_s: float
    model_bytes: int
    start: IntArray
    pair_client: npt.NDArray[np.int32]
    pair_edge: npt.NDArray[np.int32]
    features: npt.NDArray[np.float32]
    price: IntArray
    available: BoolArray
    centre: FloatArray
    scale: FloatArray
    beta: FloatArray
    client: FloatArray
    edge: FloatArray
    pair_key: IntArray
    pair: FloatArray
    tau_beta: FloatArray
    tau_sd: float
    client_tau: FloatArray
    shares: FloatArray
    ending: npt.NDArray[np.int8]
    ending_s: FloatArray
    void: BoolArray
    used: BoolArray
    together: FloatArray

    @property
    def rounds(self) -> int:
        """R."""
        return len(self.start) - 1

    def scaled(self, features: npt.NDArray[np.float32]) -> FloatArray:
        """Return float64[P, F], features on one scale; 0 where nothing was reported."""
        x = (logs(features) - self.centre) / self.scale
        return np.asarray(np.clip(np.nan_to_num(x), -4, 4), dtype=np.float64)

    def chance(self, view: RoundView) -> FloatArray:
        """Return float64[P], the chance that an order is in time."""
        client, edge = view.pair_client.astype(np.int64), view.pair_edge.astype(np.int64)
        own = self.client[client]
        if len(self.pair_key):
            key = client * len(self.edge) + edge
            at = np.minimum(np.searchsorted(self.pair_key, key), len(self.pair_key) - 1)
            pair = np.where(self.pair_key[at] == key, self.pair[at], own)
        else:
            pair = own
        x = design(self.scaled(view.pair_features), own, self.edge[edge], pair)
        return np.asarray(1.0 / (1.0 + np.exp(-x @ self.beta)), dtype=np.float64)

    def seconds(self, view: RoundView, noise: FloatArray) -> FloatArray:
        """Return float64[P], how long an update takes that comes in time."""
        own = self.client_tau[view.pair_client]
        x = np.column_stack((np.ones(len(own)), own, self.scaled(view.pair_features)))
        return np.minimum(np.exp(x @ self.tau_beta + self.tau_sd * noise), self.deadline_s)


def logs(features: npt.NDArray[np.float32]) -> FloatArray:
    """Return rates and sizes by their logarithms."""
    x = features.astype(np.float64)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sign(x) * np.log1p(np.abs(x)), dtype=np.float64)


def design(x: FloatArray, client: FloatArray, edge: FloatArray, pair: FloatArray) -> FloatArray:
    """Return float64[P, 2F + 4]: records of client, edge and pair, features and their squares."""
    records = [np.log(p / (1 - p)) for p in (np.clip(r, *_RECORDS) for r in (client, edge, pair))]
    return np.column_stack((np.ones(len(x)), *records, x, x**2))


class LearntWorld:
    """Deals recorded rounds anew, the first ten first, and draws how orders end."""

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        self._tape = tape = read_learnt(Path(recipe.learnt.file))
        for key, mine, its in (
            ("clients", recipe.clients, len(tape.client)),
            ("edges", recipe.edges, len(tape.edge)),
        ):
            if mine != its:
                raise RecipeError(key, f"is {mine}, but {its} in {recipe.learnt.file}", "leave it")
        self._recipe, self._seed = recipe, seed
        self._own = spawned_rng(seed, _DRAW, 0).standard_normal(len(tape.client))
        self._drawn = 0
        self._seconds = np.zeros(0)
        self._failed = np.zeros(0, dtype=np.int64)

    def view(self, round_: int) -> RoundView:
        """Deal a round; rounds are asked for in their order."""
        tape, at = self._tape, self._at(round_)
        pairs = slice(int(tape.start[at]), int(tape.start[at + 1]))
        view = RoundView(
            round=round_,
            pair_client=tape.pair_client[pairs],
            pair_edge=tape.pair_edge[pairs],
            pair_features=tape.features[pairs],
            feature_names=tape.names,
            client_price=tape.price[at],
            client_available=tape.available[at],
            edge_budget=np.full(len(tape.edge), self._recipe.budget_micro, dtype=np.int64),
            deadline_s=tape.deadline_s,
            model_bytes=tape.model_bytes,
        )
        rng = spawned_rng(self._seed, _DRAW, round_)
        luck, chance = self._luck(view, rng, round_), tape.chance(view)
        count = len(view.pair_client)
        self._seconds = tape.seconds(view, rng.standard_normal(count))
        self._failed = rng.integers(max(1, len(tape.ending)), size=count)
        arrives = (luck < chance) | (len(tape.ending) == 0)
        truth = Truth(arrives=arrives, chance=chance, tau_s=tape.seconds(view, np.zeros(count)))
        return replace(view, truth=truth)

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Return how these orders ended; of one not in time as some recorded one."""
        tape = self._tape
        assert view.truth is not None
        won, failed = view.truth.arrives[pairs], self._failed[pairs]
        tau = self._seconds[pairs]
        void, used = np.zeros(len(pairs), dtype=np.bool_), won
        ending = np.zeros(len(pairs), dtype=np.int8)
        if len(tape.ending):
            tau = np.where(won, tau, tape.ending_s[failed])
            void, used = ~won & tape.void[failed], won | tape.used[failed]
            ending = np.where(won, Ending.IN_TIME, tape.ending[failed]).astype(np.int8)
        known = np.where(void, np.nan, tau)
        dt, lc, ut = (share * known for share in tape.shares)
        stages = {"dt_s": dt, "lc_s": lc, "ut_s": ut}
        more = {"used": used, "void": void, "censored": void, "ending": ending}
        return arrived(view, pairs, won, tau, **stages, **more)

    def _at(self, round_: int) -> int:
        block, offset = divmod(round_ - 1, BLOCK)
        if not block:
            return min(offset, self._tape.rounds - 1)
        deal = spawned_rng(self._seed, _DEAL, block)
        return int(deal.integers(max(1, self._tape.rounds - BLOCK + 1))) + min(
            offset, self._tape.rounds - 1
        )

    def _luck(self, view: RoundView, rng: np.random.Generator, round_: int) -> FloatArray:
        """Return float64[P] in [0, 1], correlated as the tape's orders were."""
        edge, own, stays = self._tape.together.tolist()
        while self._drawn < round_:
            self._drawn += 1
            fresh = spawned_rng(self._seed, _DRAW, 0, self._drawn).standard_normal(len(self._own))
            self._own = stays * self._own + np.sqrt(1 - stays**2) * fresh
        shock = rng.standard_normal(len(self._tape.edge))
        z = (
            np.sqrt(edge) * shock[view.pair_edge]
            + np.sqrt(own) * self._own[view.pair_client]
            + np.sqrt(1 - edge - own) * rng.standard_normal(len(view.pair_client))
        )
        return np.array([NormalDist().cdf(one) for one in z.tolist()])


def write_learnt(tape: Learnt, path: Path) -> None:
    """Write it as safetensors, what is no array in the header."""
    plain, arrays = {}, {}
    for one in fields(tape):
        value = getattr(tape, one.name)
        if isinstance(value, np.ndarray):
            arrays[one.name] = np.ascontiguousarray(value)
        else:
            plain[one.name] = value
    save_file(arrays, path, metadata={_KEY: json.dumps(plain)})


@functools.lru_cache(maxsize=2)
def read_learnt(path: Path) -> Learnt:
    """Read a learnt world.

    Raises:
        RecipeError: It is not there, too large, or none.
    """
    key, hint = "learnt.file", "write one with `fedagent testbed learn-world RUN`"
    try:
        if path.stat().st_size > MOST_BYTES:
            raise RecipeError(key, f"{path} has more than {MOST_BYTES} bytes", hint)
        with safe_open(path, framework="np") as opened:
            plain = json.loads((opened.metadata() or {})[_KEY])
        columns: dict[str, Any] = {**load_file(path), **plain, "names": tuple(plain["names"])}
        tape = Learnt(**columns)
        _check(tape)
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RecipeError(key, f"{path} cannot be read as a learnt world", hint) from error
    return tape


def _check(tape: Learnt) -> None:
    """Raise a `ValueError` where arrays do not fit together."""
    pairs, width = len(tape.pair_client), len(tape.names)
    n, m, r = len(tape.client), len(tape.edge), tape.rounds
    shapes = {
        "pair_edge": (pairs,),
        "features": (pairs, width),
        "price": (r, n),
        "available": (r, n),
        "centre": (width,),
        "scale": (width,),
        "beta": (2 * width + 4,),
        "pair": tape.pair_key.shape,
        "tau_beta": (width + 2,),
        "client_tau": (n,),
        "shares": (3,),
        "ending_s": tape.ending.shape,
        "void": tape.ending.shape,
        "used": tape.ending.shape,
        "together": (3,),
    }
    for name, shape in shapes.items():
        if getattr(tape, name).shape != shape:
            raise ValueError(name)
    steps = np.diff(tape.start)
    inside = r > 0 and tape.start[0] == 0 and tape.start[-1] == pairs and (steps >= 0).all()
    edge, own, stays = tape.together.tolist()
    if not (inside and edge >= 0 and own >= 0 and edge + own <= 1 and 0 <= stays < 1):
        raise ValueError("together")
    if pairs and not (0 <= tape.pair_client.min() <= tape.pair_client.max() < n):
        raise ValueError("pair_client")
    if pairs and not (0 <= tape.pair_edge.min() <= tape.pair_edge.max() < m):
        raise ValueError("pair_edge")
