"""Forecasts that an ordered pair is in time, by ridge regression over a log's own pairs.

Two folds of blocks of rounds: each is forecast by what was learnt in the other alone, so that no
forecast has seen what it is corrected by.
"""

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray, RoundView

from .log import Choices

_BLOCK = 10
"""Rounds that stay together in a fold: what happens to a device lasts for some."""
_RIDGE = 1.0
_PRIOR = 2.0
"""Orders that a client's own record weighs as much as everybody's."""


def forecasts(rounds: list[Choices]) -> list[FloatArray]:
    """Return float64[S] in [0, 1] for each round: the chance that a choice is in time."""
    fold = np.array([one.view.round // _BLOCK % 2 for one in rounds])
    if len(set(fold.tolist())) < 2:
        fold = np.arange(len(rounds)) % 2
    models = [_Model([one for one, f in zip(rounds, fold, strict=True) if f != k]) for k in (0, 1)]
    return [models[k].of(one) for one, k in zip(rounds, fold.tolist(), strict=True)]


class _Model:
    """Coefficients over a pair's features and its client's own record."""

    def __init__(self, rounds: list[Choices]) -> None:
        clients = max((len(one.view.client_price) for one in rounds), default=0)
        wins, orders = np.zeros(clients), np.zeros(clients)
        for one in rounds:
            its = one.view.pair_client[one.ordered]
            np.add.at(wins, its, one.in_time)
            np.add.at(orders, its, 1.0)
        self._wins, self._orders = wins, orders
        self._mean = float(wins.sum() / max(1.0, orders.sum()))
        # Devices measure some features only after a while: rounds differ in what they know.
        self._names = sorted({name for one in rounds for name in one.view.feature_names})
        raw = [_raw(one.view, one.ordered, self._names) for one in rounds]
        x = np.concatenate(raw) if raw else np.zeros((0, 0))
        y = np.concatenate([one.in_time for one in rounds]) if rounds else np.zeros(0)
        clients_of = [one.view.pair_client[one.ordered] for one in rounds]
        whose: IntArray = np.concatenate([np.zeros(0), *clients_of]).astype(np.int64)
        with np.errstate(invalid="ignore"):
            known = np.isfinite(x)
            count = np.maximum(1, known.sum(axis=0))
            self._centre = np.where(known, x, 0.0).sum(axis=0) / count
            spread = np.where(known, x - self._centre, 0.0)
            self._scale = np.sqrt((spread**2).sum(axis=0) / count) + 1e-9
        own = self._record(whose, y)
        design = self._design(x, own)
        penalty = _RIDGE * np.eye(design.shape[1])
        penalty[0, 0] = 1e-9
        self._beta = np.linalg.solve(design.T @ design + penalty, design.T @ y)

    def of(self, one: Choices) -> FloatArray:
        """Return the chance of every choice of a round."""
        whose = one.view.pair_client[one.pairs].astype(np.int64)
        design = self._design(_raw(one.view, one.pairs, self._names), self._record(whose, None))
        return np.asarray(np.clip(design @ self._beta, 0.0, 1.0), dtype=np.float64)

    def _record(self, clients: IntArray, left_out: FloatArray | None) -> FloatArray:
        """Return the record of each client, without the row itself where it was learnt from."""
        inside = clients < len(self._wins)
        at = np.where(inside, clients, 0)
        wins = np.where(inside, self._wins[at] if len(self._wins) else 0.0, 0.0)
        orders = np.where(inside, self._orders[at] if len(self._orders) else 0.0, 0.0)
        if left_out is not None:
            wins, orders = wins - left_out, orders - 1.0
        return np.asarray((wins + _PRIOR * self._mean) / (orders + _PRIOR), dtype=np.float64)

    def _design(self, raw: FloatArray, own: FloatArray) -> FloatArray:
        scaled = np.nan_to_num((raw - self._centre) / self._scale)
        return np.column_stack((np.ones(len(raw)), own, np.clip(scaled, -5, 5)))


def _raw(view: RoundView, pairs: IntArray, names: list[str]) -> FloatArray:
    """Return float64[S, F]: rates and sizes by their logarithms; NaN for what is not known."""
    x = np.column_stack([np.zeros((len(pairs), 0)), *(view.optional(n)[pairs] for n in names)])
    return np.asarray(np.sign(x) * np.log1p(np.abs(x)), dtype=np.float64)
