"""Sets of clients as arms: slots, rewards, and what was played (ALGORITHMS section 5).

A slot is L rounds with one set of clients; its reward is the mean opinion on the
model after its last round.
"""

import math
from collections.abc import Iterator

import numpy as np

from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies.base import (
    MAX_COUNT,
    MAX_MICRO,
    BoolArray,
    Feedback,
    FloatArray,
    IndexArray,
    IntArray,
    RoundView,
)
from fedagent_coordinator.policies.selection import fill
from fedagent_coordinator.policies.state import ArrayState, floats, indices, ints
from fedagent_protocol.registry import require

_WINDOW = 64


class Slot(ArrayState):
    """The running slot, sorted clients or none between slots, and how many are over.

    Its set is what was really played in its first round. Members who drop out leave
    the later rounds smaller and are chosen again when they are back; they are not
    replaced.
    """

    slot = ints(2)
    """Slots that are over, and rounds of the running one."""
    running = ints("running", ascending=True)

    def __init__(self, rounds: int) -> None:
        self._rounds = rounds

    @property
    def t(self) -> int:
        """The number of the slot that runs or comes next, from 1."""
        return int(self.slot[0]) + 1

    def advance(self, feedback: Feedback) -> IntArray:
        """Count a round; return the clients to credit if it ended a slot, else none.

        A slot starts with the first round in which a client played. Credited is the
        set that played in its last round: if that differs, it is another arm.
        """
        none: IntArray = np.empty(0, dtype=np.int64)
        clients = np.unique(feedback.view.pair_client[feedback.pairs]).astype(np.int64)
        over, done = self.slot.tolist()
        if done == 0:
            if not len(clients):
                return none
            self.running = clients
        if done + 1 < self._rounds:
            self.slot[1] = done + 1
            return none
        self.slot[:] = over + (len(clients) > 0), 0
        self.running = none
        return clients

    def problems(self) -> Iterator[str]:
        """Refuse the state of a policy with shorter slots."""
        at = int(self.slot[1])
        if not at < self._rounds or (at == 0) != (len(self.running) == 0):
            yield f"is in round {at} of slots of {self._rounds}"


def reward(opinions: FloatArray | None) -> float:
    """Return the mean of the opinions that there are; NaN without any."""
    if opinions is None:
        return math.nan
    known = opinions[np.isfinite(opinions)]
    return float(known.mean()) if len(known) else math.nan


def candidates(view: RoundView) -> BoolArray:
    """Return bool[N]: available clients that some visible edge's whole budget pays."""
    seen = view.pair_client
    # Prices and budgets of all pairs are dear to gather, and mostly every edge pays everybody.
    if view.edge_budget.min(initial=MAX_MICRO) < view.client_price.max(initial=0):
        seen = seen[view.pair_price <= view.edge_budget[view.pair_edge]]
    there = np.zeros(len(view.client_price), dtype=np.bool_)
    there[seen.astype(np.intp)] = True  # numpy writes by int32 indices at half the speed
    return np.asarray(there & view.client_available)


def take(
    view: RoundView, clients: IntArray, limit: int, liking: FloatArray | None = None
) -> IntArray:
    """Return a pair for each client that still fits, in order, `limit` at most.

    A client seen by several edges goes to the one of the largest `liking`, float64[P], that still
    pays for it, of equal ones and without it to that with the largest budget (ties by edge index);
    its price is the same everywhere. `clients` are distinct, best first; those out of sight are
    skipped.
    """
    near = np.zeros(len(view.client_price), dtype=np.bool_)
    rank = np.empty(len(near), dtype=np.int64)
    window = max(_WINDOW, 4 * limit)
    while True:
        first = clients[:window]
        near[first], rank[first] = True, np.arange(len(first))
        rows = np.flatnonzero(near[view.pair_client])
        client, edge = view.pair_client[rows], view.pair_edge[rows]
        worse = np.zeros(len(rows)) if liking is None else -liking[rows]
        order = rows[np.lexsort((edge, -view.edge_budget[edge], worse, rank[client]))]
        pairs = fill(view, order.astype(np.int64))[:limit]
        if len(pairs) == limit or window >= len(clients):
            return pairs
        window *= 4


def check_set(name: str, *, clients_per_round: int, slot_rounds: int, mu: float = 0.0) -> None:
    """Refuse counts below 1 and a `mu` that is negative or not finite."""
    for parameter, count in (
        ("clients_per_round", clients_per_round),
        ("slot_rounds", slot_rounds),
    ):
        require(name, parameter, count, 1 <= count <= MAX_COUNT, f"in 1..{MAX_COUNT}")
    require(name, "mu", mu, math.isfinite(mu) and mu >= 0, "finite and >= 0")


def keys_of(rows: IndexArray) -> list[bytes]:
    """Return one key per row, int32[A, K] of ascending clients.

    Keys compare as the rows do as tuples, because they are big-endian.
    """
    width = rows.shape[1] * 4
    data = rows.astype(">i4").tobytes()
    return [data[at : at + width] for at in range(0, len(data), width)]


class ArmTable(ArrayState):
    """Arms that have been played, in the order of first plays; memory O(A K).

    Sets of another size than K are no arms: with K or fewer clients there is nothing to
    choose, so nothing to learn.
    """

    arms = indices("arms", "size")
    arm_mean = floats("arms")
    arm_count = ints("arms")

    def __init__(self, size: int) -> None:
        self.fix(size=size)
        self._size = size
        self.keys: dict[bytes, int] = {}  # row of each arm by its key (`keys_of`)
        self._top = -1

    def __len__(self) -> int:
        return len(self.arms)

    def row(self, clients: IntArray) -> int | None:
        """Return the row of these ascending clients, None if never played."""
        return self.keys.get(clients.astype(">i4").tobytes())

    def credit(self, clients: IntArray, reward: float, prior: float | None = None) -> bool:
        """Take in one play of ascending clients; return whether it made a new arm.

        Ignored unless K clients played and there is a reward. `prior` is the mean of a new arm
        before this play, which counts as one play too.
        """
        if len(clients) != self._size or math.isnan(reward):
            return False
        row = self.row(clients)
        if row is not None:
            self._add(row, reward)
            return False
        row = len(self)
        self.arms = np.concatenate((self.arms, clients[np.newaxis].astype(np.int32)))
        self.arm_mean = np.concatenate((self.arm_mean, [reward if prior is None else prior]))
        self.arm_count = np.concatenate((self.arm_count, [1]))
        self.keys[clients.astype(">i4").tobytes()] = row
        self._top = max(self._top, int(clients[-1]))
        if prior is not None:
            self._add(row, reward)
        return True

    def require_known(self, clients: int) -> None:
        """Raise `PolicyError` for arms of clients that do not exist: indices only grow."""
        if self._top >= clients:
            raise PolicyError(f"state of arms: names client {self._top}, and there are {clients}")

    def inside(self, allowed: BoolArray) -> BoolArray:
        """Return bool[A]: arms whose clients are all allowed (bool[N]); see `require_known`."""
        self.require_known(len(allowed))
        if allowed.all():
            return np.ones(len(self), dtype=np.bool_)
        return np.asarray(allowed[self.arms].all(axis=1))

    def index(self, rows: IntArray, mu: float, t: int) -> FloatArray:
        """Return the UCB index of these rows: mean + mu sqrt(ln t / count)."""
        return np.asarray(self.arm_mean[rows] + mu * np.sqrt(math.log(t) / self.arm_count[rows]))

    def problems(self) -> Iterator[str]:
        """Refuse arms that contradict each other."""
        if not self.arm_count.all():
            yield "has an arm that was never played"
        if len(set(keys_of(self.arms))) != len(self) or (np.diff(self.arms, axis=1) <= 0).any():
            yield "has an arm twice, or one that is not sorted"

    def restored(self) -> None:
        """Find the arms' rows again."""
        self.keys = {key: row for row, key in enumerate(keys_of(self.arms))}
        self._top = int(self.arms.max(initial=-1))

    def _add(self, row: int, reward: float) -> None:
        count = int(self.arm_count[row])
        self.arm_mean[row] = (self.arm_mean[row] * count + reward) / (count + 1)
        self.arm_count[row] = count + 1
