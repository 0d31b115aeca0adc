"""`adaptive`, ours: forecast who will be in time, and buy the most expected updates.

The forecasts are of `forecasts`; P2 is solved with them. A floor of exploration goes first: who
has had fewer than five outcomes is ordered every ten rounds, and who has waited `probe_every` is
tried again, if a sure update of it would cost no more than what its edge pays for one on average.
Page: docs/policies/adaptive.md.
"""

from functools import partial

import numpy as np

from fedagent_coordinator.policies.base import (
    Aspects,
    BoolArray,
    Ending,
    Feedback,
    FloatArray,
    IndexArray,
    IntArray,
    RoundView,
    Selection,
)
from fedagent_coordinator.policies.selection import explained, fill
from fedagent_coordinator.policies.state import ArrayState, floats, grown, ints, number
from fedagent_coordinator.solvers import Solver, assign
from fedagent_coordinator.solvers import create as create_solver
from fedagent_protocol.registry import require

from .forecasts import Forecasts
from .shared_failures import USUALLY_LEFT
from .upload_demand import EVERY

_BLOCK = 1 << 15
"""Pairs that are forecast at a time, so that the temporaries stay in the cache."""
_EARLY = 3
"""Rounds before its time in which a device is tried if its context is good."""
_GOOD_CONTEXT = 0.9
"""Promise from which a context is good."""
_AS_GOOD = 0.8
"""Share of the usual promise below which a device waits longer for its try."""
NEW, NEW_EVERY = 5, 10
"""Outcomes below which a client is new, and rounds in which a new one is ordered once."""
_SOON = 5
"""Rounds after which a new one is due, so that the money need not be there in the very last."""
_DELIVERS = 0.8
"""Forecast from which a device delivers: it is tried however its context looks."""
_WORSE, _FAR_WORSE, _BETTER = 0.9, 0.5, 1.2
"""Shares of its context's promise below or above which a device does other than its context says:
a good context is missed by a tenth, a poor one (below `_EVEN`) by half."""
_EVEN = 0.5
_RESTARTS = 20
"""Rounds in which another start of a client changes nothing, so that claiming one gains nothing."""
_AMONG = 64
"""Clients for each edge among which those are found that are tried."""
_SURELY = 0.8
"""From this chance on that a device never delivers it rests until it is tried again."""
HARDLY = 0.02
"""Forecasts below this share of the best buy nothing: the edge would wait in vain."""
_KEEP = 0.95
"""What a round leaves of the accounts of edges and of the usual promise: 20 rounds count."""


class AdaptivePolicy(ArrayState):
    """Choose by averaged forecasts of success, with a floor of exploration."""

    name = "adaptive"
    parts = ("_forecasts",)
    prefixed = (("device_", "_devices"),)
    _played = ints("clients")  # the round in which a client was last ordered, or first seen
    _came = ints("clients")  # the round in which a client was first seen
    _outcomes = ints("clients")  # ends of its orders that tell something of it, `NEW` at most
    _starts = ints("clients")  # as last seen, and one more; 0 before
    _renewed = ints("clients")  # the round in which a client was last taken as a new one
    _allowance = floats("edges", least=0)
    _bought = floats("edges", least=0)  # updates in time, fading
    _paid = floats("edges", least=0)  # and what they cost, credits
    _ordered = floats("edges", least=0)  # the orders that this was paid for, likewise
    _typical = number(0.5, least=0)  # what the contexts of ordered pairs promise, fading

    def __init__(
        self,
        *,
        memory: float = 33.0,
        patience: float = 0.02,
        idle_rounds: int = 10,
        share: float = 0.01,
        probe_every: int = 27,
        probe_share: float = 0.2,
        solver: str | Solver = "density",
    ) -> None:
        check = partial(require, self.name)
        check("memory", memory, memory > 1, "> 1")
        check("patience", patience, 0 <= patience <= 1, "in [0, 1]")
        check("idle_rounds", idle_rounds, idle_rounds >= 1, ">= 1")
        check("share", share, 0 < share < 1, "in (0, 1)")
        check("probe_every", probe_every, probe_every > _EARLY, f"> {_EARLY}")
        check("probe_share", probe_share, 0 <= probe_share <= 1, "in [0, 1]")
        self._forecasts = Forecasts(memory, share)
        self._devices = self._forecasts.devices
        self._patience, self._idle_rounds = patience, idle_rounds
        self._probe_every, self._probe_share = probe_every, probe_share
        self._solver = create_solver(solver) if isinstance(solver, str) else solver

    @property
    def needs(self) -> frozenset[str]:
        """Nothing: every feature is optional."""
        return frozenset()

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Try who is due, then solve P2 with the forecasts; ties by waiting, then by chance."""
        anew = self._restarted(view)
        scores = (chances := self._scores(view, anew))[0]
        idle = self._idle(view)
        idle[anew] = np.maximum(idle[anew], self._probe_every)
        due = self._due(view, idle, anew, chances, rng)
        allowed = grown(self._allowance, len(view.edge_budget))[: len(view.edge_budget)]
        turn = self._in_turn(view, due, idle, allowed)
        if view.trust is not None:
            scores = scores * view.of_client(view.trust)
        within = np.minimum(view.edge_budget, np.rint(allowed * 1e6).astype(np.int64))
        first = fill(view, turn, budgets=within) if len(turn) else turn
        wanted = view.of_client(view.client_available & ~self._resting(view, idle))
        wanted &= scores >= HARDLY * scores.max(initial=0.0)
        waiting = 1.0 + self._patience * np.minimum(idle, self._idle_rounds) / self._idle_rounds
        value = view.of_client(waiting) * scores
        rest = assign(view, value, self._solver, rng, wanted=wanted, after=first)
        notes = {**self._forecasts.weights, "probes": float(len(first))}
        return explained(view, np.concatenate((first, rest)), scores, notes)

    def aspects(self, view: RoundView) -> Aspects:
        """Return the forecast and what it is made of, and what is believed of each device."""
        anew = self._restarted(view)
        forecast, own, promised = self._scores(view, anew)
        clients = view.pair_client.astype(np.int64)
        values = {
            "forecast": forecast,
            "without shared failures": own,
            "promised by the context": promised,
            "never delivers": self._forecasts.never(clients, view.round),
            "rounds since ordered": self._idle(view)[clients] * 1.0,
            "outcomes": grown(self._outcomes, len(view.client_price))[clients] * 1.0,
        }
        if view.trust is not None:
            values["trust"] = view.trust[clients]
        return values

    def learn(self, feedback: Feedback) -> None:
        """Teach the forecasts; remember who played, and what an update costs."""
        view, pairs = feedback.view, feedback.pairs
        edges, clients = len(view.edge_budget), view.pair_client[pairs]
        self.grow(clients=len(view.client_price), edges=edges)
        self._played[self._played == 0] = self._came[self._came == 0] = view.round
        self._forget_restarted(view)
        idle = self._idle(view, clients)
        promised = self._forecasts.learn(feedback)
        if len(pairs):
            self._typical = _KEEP * self._typical + (1 - _KEEP) * float(promised.mean())
        self._keep_accounts(view, pairs, self._awaited(idle, self._new(clients)), feedback.X)
        self._played[clients] = view.round
        self._outcomes[clients] += feedback.endings != Ending.EDGE

    def _keep_accounts(
        self, view: RoundView, pairs: IntArray, probed: BoolArray, success: BoolArray
    ) -> None:
        """Count what trying devices has cost each edge, and what it pays for an update."""
        price, edge = view.prices(pairs) / 1e6, view.pair_edge[pairs]
        known, total, usual = len(view.edge_budget), len(self._allowance), ~probed
        budget = view.edge_budget / 1e6
        # P2 may have chosen some who were due: their price is no debt of those who come next.
        left = np.maximum(self._allowance - np.bincount(edge[probed], price[probed], total), 0.0)
        # A round without a budget takes no savings away.
        saved = np.minimum(left[:known] + self._probe_share * budget, budget)
        left[:known] = np.maximum(left[:known], saved)
        self._allowance = left
        bought = np.bincount(edge[usual], success[usual], total)
        self._bought = _KEEP * self._bought + bought
        self._ordered = _KEEP * self._ordered + np.bincount(edge[usual], minlength=total)
        self._paid = _KEEP * self._paid + np.bincount(edge[usual], price[usual], total)

    def _scores(self, view: RoundView, restarted: BoolArray) -> FloatArray:
        """Block by block, so that the temporaries of a million pairs stay in the cache."""
        chances = np.empty((3, len(view.pair_client)))
        for begin in range(0, chances.shape[1], _BLOCK):
            rows = slice(begin, begin + _BLOCK)
            for whole, block in zip(chances, self._forecasts.chance(view, rows), strict=True):
                whole[rows] = block
        if restarted.any():
            anew = view.of_client(restarted)
            chances[:2, anew] = np.maximum(chances[:2, anew], chances[2, anew])
        return chances

    def _idle(self, view: RoundView, clients: IndexArray | slice = EVERY) -> IntArray:
        """Return int64[K], rounds since each client was last ordered, or first seen."""
        played = grown(self._played, len(view.client_price))[clients]
        return np.where(played > 0, view.round - played, 0)

    def _new(self, clients: IndexArray | IntArray) -> BoolArray:
        """Return bool[K], whether each client has yet to show what it does."""
        outcomes = grown(self._outcomes, int(clients.max(initial=-1)) + 1)
        return np.asarray(outcomes[clients] < NEW, dtype=np.bool_)

    def _awaited(self, idle: IntArray, new: BoolArray) -> BoolArray:
        """Return bool[K], whether clients have waited long enough to be tried."""
        known = self._probe_every - _EARLY
        return np.asarray(idle >= np.where(new, min(_SOON, known), known), dtype=np.bool_)

    def _restarted(self, view: RoundView) -> BoolArray:
        """Return bool[N], clients that have started anew since they were last ordered."""
        if view.client_starts is None:
            return np.zeros(len(view.client_price), dtype=np.bool_)
        known = grown(self._starts, len(view.client_price))
        anew = (view.client_starts >= known) & (known > 0)
        if anew.any():
            renewed = grown(self._renewed, len(view.client_price))
            anew &= (renewed == 0) | (view.round - renewed >= _RESTARTS)
        return anew

    def _forget_restarted(self, view: RoundView) -> None:
        if view.client_starts is None:
            return
        anew = np.flatnonzero(self._restarted(view))
        if len(anew):
            self._forecasts.forget(anew, view.round)
            self._renewed[anew] = view.round
            self._played[anew] = np.maximum(1, view.round - self._probe_every)
        self._starts[: len(view.client_price)] = view.client_starts + 1

    def _due(
        self,
        view: RoundView,
        idle: IntArray,
        restarted: BoolArray,
        chances: FloatArray,
        rng: np.random.Generator,
    ) -> IntArray:
        """Return int64[D], pairs of clients to be tried, in their order.

        New ones come first, who came first before others; then who has waited longest.
        """
        count = len(idle)
        new = self._new(np.arange(count))
        clients = np.flatnonzero(self._awaited(idle, new) & view.client_available)
        # Who is seen for the first time has not waited.
        age = np.where(new, grown(self._came, count), view.round)
        most = _AMONG * (1 + len(view.edge_budget))
        if len(clients) > most:  # of a million devices that are due few can be tried
            turn = age[clients] + rng.random(len(clients))
            clients = clients[np.argpartition(turn, most)[:most]]
        soon = np.zeros(count, dtype=np.bool_)
        soon[clients] = True
        pairs = np.flatnonzero(view.of_client(soon))
        scores, own, promised = chances[:, pairs]
        clients, edge = (end[pairs].astype(np.int64) for end in (view.pair_client, view.pair_edge))
        # A client that is known, and does as its middling context promises, needs no try.
        limit = np.where(promised >= _EVEN, _WORSE, _FAR_WORSE) * promised
        asked, first = restarted[clients], new[clients]
        tried = asked | (own >= _DELIVERS) | (own < limit) | (own > _BETTER * promised)
        # A poor context waits longer: it says itself why the client is not ordered.
        patient = np.minimum(1.0, promised / (_AS_GOOD * self._typical)) ** 2
        tried &= (idle[clients] * patient >= self._probe_every) | (promised >= _GOOD_CONTEXT)
        edges = len(view.edge_budget)
        accounts = (self._bought, self._paid, self._ordered)
        bought, paid, ordered = (grown(account, edges)[:edges] for account in accounts)
        rate, price = bought / np.maximum(paid, 1e-9), view.client_price[clients] / 1e6
        # An update costs more where shared failures are frequent: the limit must not rise with it.
        shared = np.minimum(1.0, scores / own / USUALLY_LEFT)
        dear = price * rate[edge] > shared + 1e-9
        # Strangers are not paid for coming: a new one is dear above what all are paid, too.
        first &= ~dear | (price * ordered[edge] <= paid[edge] * (1 + 1e-6))
        due = first | (tried & (~dear | asked))
        order = np.lexsort((-promised, -idle[clients], age[clients]))
        return np.asarray(pairs[order[due[order]]], dtype=np.int64)

    def _in_turn(
        self, view: RoundView, pairs: IntArray, idle: IntArray, allowed: FloatArray
    ) -> IntArray:
        """Leave out pairs that no allowance pays, and those that come after a saved-for one.

        Otherwise cheap clients would spend for good what a dear one waits for.
        """
        price, edge = view.prices(pairs), view.pair_edge[pairs]
        short = price > np.rint(allowed[edge] * 1e6)
        clients = view.pair_client[pairs]
        patient = ~self._new(clients) & (idle[clients] < 2 * self._probe_every)
        saving = np.flatnonzero(short & ~patient & (price <= view.edge_budget[edge]))
        since = np.full(len(view.edge_budget), len(pairs), dtype=np.int64)
        np.minimum.at(since, edge[saving], saving)
        return pairs[~short & (np.arange(len(pairs)) < since[edge])]

    def _resting(self, view: RoundView, idle: IntArray) -> BoolArray:
        """Return bool[N], clients that surely never deliver, and are not due."""
        waiting = ~self._awaited(idle, self._new(np.arange(len(idle))))
        clients = np.flatnonzero(waiting & view.client_available)
        resting = np.zeros(len(idle), dtype=np.bool_)
        resting[clients] = self._forecasts.never(clients, view.round) > _SURELY
        return resting
