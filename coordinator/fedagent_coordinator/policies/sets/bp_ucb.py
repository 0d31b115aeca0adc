"""`bp-ucb`: single clients by opinion, neighbours' belief and exploration.

GDA, Algorithm 2 (ALGORITHMS section 5). The index of client n is its mean opinion over
the slots in which it trained + b_n / N + mu sqrt(ln t / Pi_n); the K largest that fit
train, ties by the round's generator. What clients think of the initial model is slot 1, so the
first set is chosen at t = 2, with the beliefs that these opinions give (`beliefs`).

Cold start (ALGORITHMS section 9): who has never trained comes first, by its index, so that sets of
K cover everybody once; the mean is then of slots in which the client trained, and nothing else.
Page: docs/policies/bp-ucb.md.
"""

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from fedagent_coordinator.policies.base import (
    OPINIONS,
    Aspects,
    BoolArray,
    Feedback,
    FloatArray,
    IntArray,
    RoundView,
    Selection,
)
from fedagent_coordinator.policies.selection import explained
from fedagent_coordinator.policies.state import ArrayState, bools, floats, grown, ints
from fedagent_protocol.errors import ParameterError
from fedagent_protocol.registry import require

from .arms import Slot, candidates, check_set, take
from .beliefs import (
    BeliefResult,
    Graph,
    Wiring,
    declared,
    k_nearest,
    propagate,
    propagate_literal,
    wire,
    within_radius,
)

_FEATURES = ("x_km", "y_km")
_GRAPHS = ("k-nearest", "radius", "declared")
_NOTES = ("bp_sweeps", "bp_residual", "bp_contraction")
FIRST = 2.0
"""What a client that never trained has over its index: mean + b/N of any other is 2 at most."""
TRIES = 2
"""Slots in which a client that never trained comes first; later ones it has to win."""


class BpUcbPolicy(ArrayState):
    """BP-UCB, everybody once first; `cold_start` false is the algorithm as printed.

    As printed a client counts as pulled once when its first opinion is known. A client without any
    opinion has the mean of the others' means; while there are none, K random clients train. Its
    belief is that of a neighbour without an opinion.
    """

    name = "bp-ucb"
    parts = ("_slot",)
    _mean = floats("clients", start=np.nan, nan=True)
    _count = ints("clients")
    _chosen = ints("clients")
    _trained = bools("clients")
    _last = floats("clients", start=np.nan, nan=True)
    _belief = floats("clients", start=0.5, least=0)
    _places = floats("clients", 2, start=np.nan, nan=True)
    _diagnostics = floats(len(_NOTES))

    def __init__(
        self,
        *,
        clients_per_round: int = 5,
        mu: float = 0.1,
        slot_rounds: int = 1,
        cold_start: bool = True,
        graph: str = "k-nearest",
        neighbours: int = 4,
        radius_km: float = 0.3,
        edges: Sequence[Sequence[float]] = (),
        max_sweeps: int = 200,
        literal: bool = False,
        local_weights: bool = False,
    ) -> None:
        check_set(self.name, clients_per_round=clients_per_round, slot_rounds=slot_rounds, mu=mu)
        check = partial(require, self.name)
        check("graph", graph, graph in _GRAPHS, f"one of {', '.join(_GRAPHS)}")
        check("neighbours", neighbours, neighbours >= 1, ">= 1")
        check("max_sweeps", max_sweeps, max_sweeps >= 1, ">= 1")
        check("radius_km", radius_km, 0 < radius_km < math.inf, "finite and > 0")
        declared(self.name, edges, 0)
        if literal and local_weights:
            raise ParameterError(self.name, "local_weights", "has no meaning with literal beliefs")
        self._size, self._mu, self._slot = clients_per_round, mu, Slot(slot_rounds)
        self._cold_start = cold_start
        self._graph, self._neighbours, self._radius = graph, neighbours, radius_km
        self._edges, self._max_sweeps = edges, max_sweeps
        self._literal, self._local = literal, local_weights
        self._wired: tuple[FloatArray, Graph, Wiring] | None = None

    @property
    def needs(self) -> frozenset[str]:
        """Opinions, and positions unless the neighbours are declared."""
        return frozenset({OPINIONS, *(() if self._graph == "declared" else _FEATURES)})

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Continue the slot, or take the K largest indices that fit."""
        seen = self._seen(view)
        notes = {"slot": float(self._slot.t)}
        notes |= zip(_NOTES, self._diagnostics.tolist(), strict=True)
        if len(self._slot.running):
            return explained(view, take(view, self._slot.running, self._size), notes=notes)
        # In random order, so that ties favour nobody: numbers are the order of enrolment.
        clients = rng.permutation(np.flatnonzero(candidates(view)).astype(np.int64))
        cold = self._cold(len(view.client_price))
        notes["cold"] = float(cold[clients].any())
        index = self._index(view, seen)
        if index is None:
            clients = clients[np.argsort(~cold[clients], kind="stable")]
            return explained(view, take(view, clients, self._size), notes=notes)
        index += FIRST * cold
        clients = clients[np.argsort(-index[clients], kind="stable")]
        pairs = take(view, clients, self._size)
        return explained(view, pairs, index[view.pair_client], notes)

    def aspects(self, view: RoundView) -> Aspects:
        """Return what an index is the sum of, and how often each client was pulled."""
        total, clients = len(view.client_price), view.pair_client
        mean, count = self._with_first(view.opinions, total)
        index = self._index(view, self._seen(view))
        values = {
            "mean opinion": mean,
            "belief": grown(self._belief, total, 0.5),
            "pulls": count.astype(np.float64),
            "chosen": grown(self._chosen, total).astype(np.float64),
        }
        if index is not None:
            values |= {"index": index, "has yet to train": self._cold(total).astype(np.float64)}
        return {name: column[clients] for name, column in values.items()}

    def learn(self, feedback: Feedback) -> None:
        """Note positions and first opinions; at the end of a slot, pulls and beliefs."""
        view = feedback.view
        self.grow(clients=len(view.client_price))
        self._places = self._placed(len(self._mean), self._seen(view))
        self._mean, self._count = self._with_first(view.opinions)
        self._trained[view.pair_client[feedback.pairs[feedback.used]]] = True
        ordered = self._slot.advance(feedback)
        if not len(ordered):
            self._mean, self._count = self._with_first(feedback.opinions)
            return
        trained, self._trained = self._trained, np.zeros_like(self._trained)
        self._chosen[ordered] += 1
        if feedback.opinions is None:
            return
        fresh = feedback.opinions
        self._credit(np.flatnonzero(trained & np.isfinite(fresh)), fresh)
        self._mean, self._count = self._with_first(fresh)
        self._last = np.where(np.isfinite(fresh), fresh, self._last)
        result = self._propagated(self._last, self._places)
        self._belief = result.belief
        self._diagnostics = np.array([result.sweeps, result.residual, result.contraction])

    def problems(self) -> Iterator[str]:
        """Refuse pulls without a mean, and as printed means without a pull."""
        known = np.isfinite(self._mean)
        if not known[self._count > 0].all():
            yield "has a mean that is not finite, of a client that was pulled"
        if not self._cold_start and not self._count[known].all():
            yield "is of a policy with a cold start: as printed an opinion is a pull"

    def restored(self) -> None:
        """Forget the neighbours that the state before had."""
        self._wired = None

    def _cold(self, total: int) -> BoolArray:
        """Return bool[N]: clients that come first because they have not trained yet."""
        if not self._cold_start:
            return np.zeros(total, dtype=np.bool_)
        return np.asarray((grown(self._count, total) == 0) & (grown(self._chosen, total) < TRIES))

    def _credit(self, clients: IntArray, fresh: FloatArray) -> None:
        """Take in the opinions of those who trained; as printed a first opinion is no pull more."""
        if not self._cold_start:
            clients = clients[self._count[clients] > 0]
        count = self._count[clients]
        before = np.where(count > 0, self._mean[clients], 0.0)
        self._mean[clients] = (before * count + fresh[clients]) / (count + 1)
        self._count[clients] += 1

    def _index(self, view: RoundView, seen: tuple[IntArray, FloatArray]) -> FloatArray | None:
        """Return the index of every client, float64[N]; None while there are no opinions."""
        total = len(view.client_price)
        mean, count = self._with_first(view.opinions, total)
        known = np.isfinite(mean)
        if not known.any():
            return None
        belief = grown(self._belief, total, 0.5)
        if not np.isfinite(self._last).any():
            # No slot is over: the means are what clients think of the initial model.
            initial = np.where(known, mean, np.nan)
            belief = self._propagated(initial, self._placed(total, seen)).belief
        mean[~known] = mean[known].mean()
        # Who is chosen and never delivers is not pulled; its bonus shrinks all the same.
        pulls = np.maximum(np.maximum(count, grown(self._chosen, total)), 1)
        bonus = np.sqrt(math.log(self._slot.t + 1) / pulls)
        return np.asarray(mean + belief / total + self._mu * bonus)

    def _with_first(
        self, opinions: FloatArray | None, total: int | None = None
    ) -> tuple[FloatArray, IntArray]:
        total = len(self._mean) if total is None else total
        mean, count = grown(self._mean, total, np.nan).copy(), grown(self._count, total).copy()
        if opinions is not None:
            first = np.isnan(mean) & np.isfinite(opinions)
            mean[first], count[first] = opinions[first], int(not self._cold_start)
        return mean, count

    def _seen(self, view: RoundView) -> tuple[IntArray, FloatArray]:
        """Return the visible clients and where they are, from each one's first pair."""
        if self._graph == "declared":
            return np.empty(0, dtype=np.int64), np.empty((0, 2))
        columns = np.column_stack([view.feature(name) for name in _FEATURES])
        clients, first = np.unique(view.pair_client, return_index=True)
        return clients.astype(np.int64), columns[first]

    def _placed(self, total: int, seen: tuple[IntArray, FloatArray]) -> FloatArray:
        """Return where clients were seen last, float64[N, 2]; NaN where never."""
        places = grown(self._places, total, np.nan).copy()
        places[seen[0]] = seen[1]
        return places

    def _propagated(self, opinion: FloatArray, places: FloatArray) -> BeliefResult:
        graph, wiring = self._wiring(places)
        if self._literal:
            return propagate_literal(graph, opinion, max_sweeps=self._max_sweeps)
        return propagate(wiring, opinion, max_sweeps=self._max_sweeps)

    def _wiring(self, places: FloatArray) -> tuple[Graph, Wiring]:
        """Return the neighbours; made anew only when a client moved."""
        if self._wired is not None:
            before, graph, wiring = self._wired
            if np.array_equal(before, places, equal_nan=True):
                return graph, wiring
        graph = self._neighbourhood(places)
        self._wired = (places.copy(), graph, wire(graph, local=self._local))
        return self._wired[1:]

    def _neighbourhood(self, places: FloatArray) -> Graph:
        if self._graph == "declared":
            return declared(self.name, self._edges, len(places))
        if self._graph == "radius":
            return within_radius(self.name, places, self._radius)
        return k_nearest(self.name, places, self._neighbours)
