"""The baselines of the papers; all but `cucb` learn nothing.

`random` and `round-robin` are of COCS and GDA, `fixed` is GDA's optimum where it is known.
`volunteers` is for runs in which clients agree among themselves (docs/democratized.md).
"""

import math
from collections.abc import Sequence

import numpy as np

from fedagent_protocol.errors import ParameterError
from fedagent_protocol.registry import require

from .base import MAX_COUNT, VOLUNTEERS, Feedback, FloatArray, IntArray, RoundView, Selection
from .selection import explained, fill
from .sets.arms import Slot, check_set, take
from .state import ArrayState, StatelessPolicy, floats, ints, number


class AllPolicy(StatelessPolicy):
    """Take as many clients as the budgets pay for, in random order.

    Clients, not pairs, are shuffled: one that does not fit at an edge is tried at the others first.
    """

    name = "all"

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its client's place in the draw."""
        place = rng.permutation(len(view.client_price))[view.pair_client]
        order = np.lexsort((rng.random(len(place)), place)).astype(np.int64)
        return explained(view, fill(view, order), -place.astype(np.float64))


class CheapestPolicy(StatelessPolicy):
    """Take visible pairs by increasing price while they fit; ties by chance."""

    name = "cheapest"

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its price."""
        price = view.pair_price
        order = np.lexsort((rng.random(len(price)), price)).astype(np.int64)
        return explained(view, fill(view, order), -price.astype(np.float64))


class RandomPolicy(ArrayState):
    """Take visible pairs in random order while they fit (COCS, baseline 4; GDA).

    `slot_rounds`: L, rounds with one set of clients; each slot draws anew.
    """

    name = "random"
    parts = ("_slot",)
    needs: frozenset[str] = frozenset()

    def __init__(self, *, slot_rounds: int = 1) -> None:
        check_set(self.name, clients_per_round=1, slot_rounds=slot_rounds)
        self._slot = Slot(slot_rounds)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; the score of a pair is minus its place in the draw."""
        running = self._slot.running
        if len(running):
            return explained(view, take(view, running, len(running)))
        order = rng.permutation(len(view.pair_client)).astype(np.int64)
        scores = np.empty(len(order))
        scores[order] = -np.arange(len(order), dtype=np.float64)
        return explained(view, fill(view, order), scores)

    def learn(self, feedback: Feedback) -> None:
        """Count the round."""
        self._slot.advance(feedback)


class FixedPolicy(StatelessPolicy):
    """Take the same clients whenever they can be chosen and fit; first choice first."""

    name = "fixed"

    def __init__(self, *, clients: Sequence[int] = (0, 1, 2, 3, 4)) -> None:
        self._clients = _checked(self.name, "clients", clients)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:  # noqa: ARG002
        """Decide one round; a missing client is not replaced."""
        clients = self._clients[self._clients < len(view.client_price)]
        return explained(view, take(view, clients, len(clients)))


class RoundRobinPolicy(StatelessPolicy):
    """Take predefined sets of clients in turn, each for a slot; the turn follows from the round.

    Without `sets` these are blocks of K consecutive clients of all N known, so that later clients
    make new blocks.
    """

    name = "round-robin"

    def __init__(
        self,
        *,
        sets: Sequence[Sequence[int]] | None = None,
        clients_per_round: int = 5,
        slot_rounds: int = 1,
    ) -> None:
        check_set(self.name, clients_per_round=clients_per_round, slot_rounds=slot_rounds)
        self._sets = None if sets is None else [_checked(self.name, "sets", s) for s in sets]
        if self._sets is not None and not self._sets:
            _checked(self.name, "sets", ())
        self._size = clients_per_round
        self._rounds = slot_rounds

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:  # noqa: ARG002
        """Decide one round: the clients of the set that can be chosen and fit."""
        turn = (view.round - 1) // self._rounds
        clients, number = self._set(turn, len(view.client_price))
        return explained(view, take(view, clients, len(clients)), notes={"set": float(number)})

    def _set(self, turn: int, total: int) -> tuple[IntArray, int]:
        if self._sets is not None:
            number = turn % len(self._sets)
            return self._sets[number][self._sets[number] < total], number
        number = turn % max(1, -(-total // self._size))
        start = number * self._size
        return np.arange(start, min(start + self._size, total), dtype=np.int64), number


class VolunteersPolicy(StatelessPolicy):
    """Take volunteers only, in random order, while they fit.

    More or fewer may volunteer than were wanted; the budgets hold in any case.
    `clients_per_round`: most clients taken; 0 for all that fit.
    """

    name = "volunteers"
    needs: frozenset[str] = frozenset({VOLUNTEERS})

    def __init__(self, *, clients_per_round: int = 0) -> None:
        known = 0 <= clients_per_round <= MAX_COUNT
        require(self.name, "clients_per_round", clients_per_round, known, f"in 0..{MAX_COUNT}")
        self._most = clients_per_round

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        """Decide one round; where not all fit, chance decides."""
        if view.volunteers is None:
            raise view.lacks(VOLUNTEERS)
        volunteers = np.flatnonzero(view.volunteers).astype(np.int64)
        clients = rng.permutation(volunteers)
        pairs = take(view, clients, self._most or len(clients))
        return explained(view, pairs, notes={"volunteers": float(len(volunteers))})


def _checked(name: str, parameter: str, clients: Sequence[int]) -> IntArray:
    """Return a set of client indices in its order, int64[S]; refuse one that is none."""
    if not clients:
        raise ParameterError(name, parameter, "is empty")
    if min(clients) < 0 or len(set(clients)) != len(clients):
        raise ParameterError(name, parameter, f"is {list(clients)}: indices >= 0, each once")
    return np.array(clients, dtype=np.int64)


_MAX_POOL = 1_000_000
_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class CucbPolicy(ArrayState):
    """UCB over super-arms, blind to contexts (COCS, baseline 2).

    The paper makes an arm of every feasible decision of the whole network, more than can be tried.
    Here a static pool stands for all: an arm is a preference over pairs, fixed by its number and
    filled into the budgets. Its reward is the share of the most successes that any round has had.
    """

    name = "cucb"
    needs: frozenset[str] = frozenset()
    _plays = ints("pool")
    _wins = floats("pool", least=0)
    _best = number(least=0)

    def __init__(self, *, pool: int = 100, mu: float = math.sqrt(2.0)) -> None:
        require(self.name, "pool", pool, 1 <= pool <= _MAX_POOL, f"in 1..{_MAX_POOL}")
        require(self.name, "mu", mu, mu >= 0, ">= 0")
        self._mu = mu
        self.fix(pool=pool)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:  # noqa: ARG002 - the interface's arguments
        """Play the arm with the largest index, untried ones first."""
        arm = self._arm(view.round)
        score = _preference(view, arm)
        order = np.argsort(-score, kind="stable").astype(np.int64)
        notes = {"arm": float(arm), "untried": float((self._plays == 0).sum())}
        return explained(view, fill(view, order), score, notes)

    def learn(self, feedback: Feedback) -> None:
        """Credit the arm that was played with its successes."""
        arm = self._arm(feedback.view.round)
        wins = float(feedback.X.sum())
        self._best = max(self._best, wins)
        self._plays[arm] += 1
        self._wins[arm] += wins

    def _arm(self, t: int) -> int:
        """Return the arm of the round; a function of the state alone, so that `learn` knows it."""
        plays = np.maximum(self._plays, 1)
        mean = self._wins / plays / max(self._best, 1.0)
        index = mean + self._mu * np.sqrt(math.log(max(t, 2)) / plays)
        return int(np.argmax(np.where(self._plays == 0, np.inf, index)))


def _preference(view: RoundView, arm: int) -> FloatArray:
    """Return the arm's fixed liking of every pair, float64[P] in [0, 1): splitmix64 of its name."""
    key = view.pair_client.astype(np.uint64) << np.uint64(32)
    key ^= view.pair_edge.astype(np.uint64) ^ (np.uint64(arm) << np.uint64(20))
    with np.errstate(over="ignore"):
        key = (key + np.uint64(1)) * _MIX[0]
        key = (key ^ (key >> np.uint64(30))) * _MIX[1]
        key = (key ^ (key >> np.uint64(27))) * _MIX[2]
        key ^= key >> np.uint64(31)
    return np.asarray((key >> np.uint64(11)).astype(np.float64) / 2.0**53)
