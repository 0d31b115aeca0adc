"""Fit a world to a recorded run: when orders are in time, how long they take, what goes together.

Whom a policy ordered followed from what is in the views, and the model goes by the same features
and records: given these, an order says of its pair what it would say of any (missing at random).
A client that was never ordered is taken for the mean of all.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.database.rounds import Logged
from fedagent_coordinator.policies.base import FloatArray, IntArray, RoundView
from fedagent_protocol.errors import FedagentError

from .worlds.learnt import BLOCK, Learnt, design, logs

LEAST_ROUNDS, LEAST_ORDERS = 3 * BLOCK, 100
_KEPT_BYTES = 256 * 1024**2
_PRIOR = 2.0
"""Orders that the mean weighs as much as in each record."""
_RIDGE = 1.0
_STEPS = 30


class TooShortError(FedagentError):
    """Raised when a run is too short to learn a world from."""

    template = "no world: {rounds} settled rounds with {orders} orders"

    rounds: int
    orders: int
    hint: str = f"it takes {LEAST_ROUNDS} rounds and {LEAST_ORDERS} orders: record a longer run"


@dataclass(frozen=True, slots=True, eq=False)
class _Orders:
    """Every order of the log; S rows."""

    round: IntArray
    client: IntArray
    edge: IntArray
    x: FloatArray  # float64[S, F]
    won: FloatArray
    tau_s: FloatArray


def fit_world(log: Iterable[Logged]) -> Learnt:
    """Return the world of a run.

    Raises:
        TooShortError: It has too few rounds or orders.
    """
    rounds = _newest(log)
    asked = sum(len(one.selection.pairs) for one in rounds)
    if len(rounds) < LEAST_ROUNDS or asked < LEAST_ORDERS:
        raise TooShortError(len(rounds), asked)
    newest = max(rounds, key=lambda one: len(one.view.client_price)).view
    n, m = len(newest.client_price), max(len(one.view.edge_budget) for one in rounds)
    names = tuple(sorted({name for one in rounds for name in one.view.feature_names}))
    features = [_columns(one, names) for one in rounds]
    raw = logs(np.concatenate(features))
    centre, scale = _scales(raw)
    orders = _orders(rounds, names, centre, scale)
    record = _records(orders, n, m)
    beta = _odds(record.design(orders), orders.won)
    late = ~orders.won.astype(np.bool_)
    tau_beta, tau_sd, client_tau = _durations(orders, n)
    return Learnt(
        names=names,
        deadline_s=float(newest.deadline_s),
        model_bytes=newest.model_bytes,
        start=np.cumsum([0, *(len(one.view.pair_client) for one in rounds)], dtype=np.int64),
        pair_client=np.concatenate([one.view.pair_client for one in rounds]),
        pair_edge=np.concatenate([one.view.pair_edge for one in rounds]),
        features=np.concatenate(features),
        price=np.stack([_padded(one.view.client_price, n) for one in rounds]),
        available=np.stack([_padded(one.view.client_available, n) for one in rounds]),
        centre=centre,
        scale=scale,
        beta=beta,
        client=record.client,
        edge=record.edge,
        pair_key=record.key,
        pair=record.pair,
        tau_beta=tau_beta,
        tau_sd=tau_sd,
        client_tau=client_tau,
        shares=_shares(rounds),
        ending=_joined(rounds, "endings", np.dtype(np.int8))[late],
        ending_s=orders.tau_s[late],
        void=_joined(rounds, "void", np.dtype(np.bool_))[late],
        used=_joined(rounds, "used", np.dtype(np.bool_))[late],
        together=_together(orders, 1 / (1 + np.exp(-record.design(orders) @ beta))),
    )


def never_ordered(tape: Learnt) -> int:
    """Return how many clients the log never ordered: what is said of them is a guess."""
    return len(tape.client) - len(np.unique(tape.pair_key // len(tape.edge)))


def _newest(log: Iterable[Logged]) -> list[Logged]:
    """Return as many of the newest settled rounds as a file may hold."""
    kept, size = deque[Logged](), 0
    for one in log:
        if one.feedback is not None:
            kept.append(one)
            size += _bytes(one.view)
        while size > _KEPT_BYTES:
            size -= _bytes(kept.popleft().view)
    return list(kept)


def _bytes(view: RoundView) -> int:
    return view.pair_features.nbytes + 8 * len(view.pair_client) + 9 * len(view.client_price)


def _columns(
    one: Logged, names: tuple[str, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    view = one.view
    found = np.full((len(view.pair_client), len(names)), np.nan, dtype=np.float32)
    for at, name in enumerate(view.feature_names):
        found[:, names.index(name)] = view.pair_features[:, at]
    return found


def _padded(column: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([column, np.zeros(size - len(column), dtype=column.dtype)])


def _scales(raw: FloatArray) -> tuple[FloatArray, FloatArray]:
    known = np.isfinite(raw)
    count = np.maximum(1, known.sum(axis=0))
    centre = np.where(known, raw, 0.0).sum(axis=0) / count
    spread = np.where(known, raw - centre, 0.0)
    return centre, np.sqrt((spread**2).sum(axis=0) / count) + 1e-9


def _orders(
    rounds: list[Logged], names: tuple[str, ...], centre: FloatArray, scale: FloatArray
) -> _Orders:
    pairs = [one.selection.pairs for one in rounds]
    raw = np.concatenate([_columns(one, names)[p] for one, p in zip(rounds, pairs, strict=True)])
    x = np.clip(np.nan_to_num((logs(raw) - centre) / scale), -4, 4)
    views = list(zip(rounds, pairs, strict=True))
    return _Orders(
        round=np.concatenate([np.full(len(p), t, dtype=np.int64) for t, p in enumerate(pairs)]),
        client=np.concatenate([one.view.pair_client[p] for one, p in views]).astype(np.int64),
        edge=np.concatenate([one.view.pair_edge[p] for one, p in views]).astype(np.int64),
        x=x,
        won=_joined(rounds, "X", np.dtype(np.float64)),
        tau_s=_joined(rounds, "tau_s", np.dtype(np.float64)),
    )


def _joined(rounds: list[Logged], name: str, dtype: np.dtype) -> np.ndarray:
    return np.concatenate([getattr(one.feedback, name) for one in rounds]).astype(dtype)


@dataclass(frozen=True, slots=True, eq=False)
class _Records:
    """Shares of orders in time, drawn to the mean; and of each order, those without itself."""

    client: FloatArray
    edge: FloatArray
    key: IntArray
    pair: FloatArray
    others: tuple[FloatArray, FloatArray, FloatArray]

    def design(self, orders: _Orders) -> FloatArray:
        """Return the design of the log's own orders, of which none has seen how it ended."""
        return design(orders.x, *self.others)


def _records(orders: _Orders, n: int, m: int) -> _Records:
    won, mean = orders.won, float(orders.won.mean())
    client, but_client = _record(orders.client, won, n, np.full(n, mean))
    edge, but_edge = _record(orders.edge, won, m, np.full(m, mean))
    key, of = np.unique(orders.client * m + orders.edge, return_inverse=True)
    pair, _ = _record(of, won, len(key), client[key // m])
    wins, count = (np.bincount(of, w, len(key))[of] for w in (won, np.ones(len(won))))
    but_pair = (wins - won + _PRIOR * but_client) / (count - 1 + _PRIOR)
    return _Records(client, edge, key, pair, (but_client, but_edge, but_pair))


def _record(
    who: IntArray, won: FloatArray, size: int, prior: FloatArray
) -> tuple[FloatArray, FloatArray]:
    wins, count = np.bincount(who, won, size), np.bincount(who, minlength=size)
    whole = (wins + _PRIOR * prior) / (count + _PRIOR)
    return whole, (wins[who] - won + _PRIOR * prior[who]) / (count[who] - 1 + _PRIOR)


def _odds(x: FloatArray, won: FloatArray) -> FloatArray:
    """Return the coefficients of ridge logistic regression, by Newton's steps."""
    beta = np.zeros(x.shape[1])
    mean = np.clip(won.mean(), 1e-3, 1 - 1e-3)
    beta[0] = np.log(mean / (1 - mean))
    penalty = np.full(x.shape[1], _RIDGE)
    penalty[0] = 1e-6
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        slope = x.T @ (won - p) - penalty * beta
        step = np.linalg.solve((x.T * (p * (1 - p) + 1e-6)) @ x + np.diag(penalty), slope)
        beta = beta + np.clip(step, -2, 2)
        if np.abs(step).max() < 1e-8:
            break
    return beta


def _durations(orders: _Orders, n: int) -> tuple[FloatArray, float, FloatArray]:
    """Return coefficients and spread of the log of seconds of updates in time, by client too."""
    kept = (orders.won > 0) & (orders.tau_s > 0)
    if not kept.any():
        return np.zeros(orders.x.shape[1] + 2), 0.0, np.zeros(n)
    y, who = np.log(orders.tau_s[kept]), orders.client[kept]
    whole, others = _record(who, y, n, np.full(n, float(y.mean())))
    x = np.column_stack((np.ones(len(y)), others, orders.x[kept]))
    penalty = _RIDGE * np.eye(x.shape[1])
    penalty[0, 0] = 1e-6
    beta = np.linalg.solve(x.T @ x + penalty, x.T @ y)
    spread = float(np.std(y - x @ beta))
    return np.asarray(beta, dtype=np.float64), spread, whole


def _shares(rounds: list[Logged]) -> FloatArray:
    """Return float64[3], the shares of download, computation and upload in the whole."""
    stages = [_joined(rounds, name, np.dtype(np.float64)) for name in ("dt_s", "lc_s", "ut_s")]
    known = np.isfinite(stages).all(axis=0)
    sums = np.array([stage[known].sum() for stage in stages])
    return sums / sums.sum() if sums.sum() > 0 else np.array([0.1, 0.7, 0.2])


def _together(orders: _Orders, chance: FloatArray) -> FloatArray:
    """Return the correlations of orders at an edge in a round, and of a client's over rounds.

    By moments of what is left of 0 and 1, turned into those of the normal numbers behind.
    """
    left = (orders.won - chance) / np.sqrt(np.maximum(chance * (1 - chance), 1e-3))
    _, group = np.unique(orders.round * (orders.edge.max() + 1) + orders.edge, return_inverse=True)
    sums, squares, size = (np.bincount(group, w) for w in (left, left**2, np.ones(len(left))))
    edge = _behind((sums**2 - squares).sum() / max(1.0, (size * (size - 1)).sum()))
    at = np.lexsort((orders.round, orders.client))
    one, two = (_behind(_lagged(orders, left, at, gap)) for gap in (1, 2))
    stays = float(np.clip(two / one, 0, 0.98)) if one > 0 else 0.0
    own = min(one / stays, 0.9 - min(edge, 0.9)) if stays > 0 else 0.0
    return np.array([min(edge, 0.9), own, stays])


def _lagged(orders: _Orders, left: FloatArray, at: IntArray, gap: int) -> float:
    first, then = at[:-gap], at[gap:]
    same = (orders.client[first] == orders.client[then]) & (
        orders.round[then] - orders.round[first] == gap
    )
    return float((left[first] * left[then])[same].mean()) if same.any() else 0.0


def _behind(moment: float) -> float:
    return float(np.sin(np.pi / 2 * np.clip(moment, 0, 0.9)))
