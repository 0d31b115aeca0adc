"""Updates in time per round under another policy: by inverse propensities, and doubly robust.

The utility of a round is a sum over its pairs, so each pair is weighed by its own propensity p
(semi-bandit feedback; Swaminathan et al. 2017 and Dudik et al. 2011 for single actions):

    ips_t = sum X / p over choices that were ordered
    dr_t  = sum m + sum (X - m) / p, with m the forecast of a ridge regression

Choices that the log would never have made are forecast by m, and widen the interval by all that
could be: from nothing in time to everything. Intervals are Student's over rounds.
"""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.books.read import Logged
from fedagent_coordinator.policies.base import FloatArray, IntArray, RoundView
from fedagent_protocol.errors import FedagentError
from fedagent_testbed.study.comparison import quantile

LEAST_ROUNDS = 20
LEAST_EFFECTIVE = 30.0
"""Orders, by their effective sample size, below which a mean says nothing."""
MOST_WITHOUT = 0.1
"""Share of choices that the log may have no support for."""
_BLOCK = 10
"""Rounds that stay together in a fold: what happens to a device lasts for some."""
_RIDGE = 1.0
_PRIOR = 2.0
"""Orders that a client's own record weighs as much as everybody's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Choices:
    """Another policy's choices in a round, beside those that were recorded.

    Attributes:
        pairs: int64[S], its choices; `chance` float64[S], with which the log ordered each.
        ordered: int64[K], whom the log ordered; `in_time` float64[K], 1 for an update in time.
    """

    view: RoundView
    pairs: IntArray
    chance: FloatArray
    ordered: IntArray
    in_time: FloatArray

    def of_pairs(self) -> FloatArray:
        """Return float64[S], 1 or 0 for a choice that was ordered, NaN for one that was not."""
        known = np.full(len(self.view.pair_client), np.nan)
        known[self.ordered] = self.in_time
        return np.asarray(known[self.pairs], dtype=np.float64)


def choices_of(round_: Logged, pairs: IntArray) -> Choices | None:
    """Return what counts of a round; None of one that was voided.

    A run that does not explore ordered whom it chose with certainty, and nobody else.
    """
    if round_.feedback is None:
        return None
    chance = round_.selection.propensities
    if chance is None:
        chance = np.zeros(len(round_.view.pair_client))
        chance[round_.selection.pairs] = 1.0
    return Choices(
        view=round_.view,
        pairs=pairs,
        chance=chance[pairs],
        ordered=round_.feedback.pairs,
        in_time=round_.feedback.X.astype(np.float64),
    )


class NoSupportError(FedagentError):
    """Raised when a log cannot say what another policy would have earned."""

    template = "no estimate: {problem}"

    problem: str
    hint: str


@dataclass(frozen=True, slots=True)
class Value:
    """Updates in time per round, with a 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What another policy would have earned.

    Attributes:
        recorded: Mean of the recorded policy, as it was.
        effective: Kish's effective sample size of the choices that were ordered.
        without_support: Share of the choices that the log would never have made.
    """

    rounds: int
    choices: int
    matched: int
    effective: float
    without_support: float
    recorded: float
    ips: Value
    doubly_robust: Value


def estimated(rounds: list[Choices]) -> Estimate:
    """Return the estimates over recorded rounds.

    Raises:
        NoSupportError: The log cannot say.
    """
    none = np.zeros(0)
    of = np.repeat(np.arange(len(rounds)), [len(one.pairs) for one in rounds])
    chance = np.concatenate([none, *(one.chance for one in rounds)])
    known = np.concatenate([none, *(one.of_pairs() for one in rounds)])
    supported = chance > 0
    weight = np.where(np.isfinite(known) & supported, 1.0 / np.where(supported, chance, 1.0), 0.0)
    effective = float(weight.sum() ** 2 / max(1e-12, float((weight**2).sum())))
    without = float((~supported).sum() / max(1, len(of)))
    _check(len(rounds), effective, without)
    forecast, x = _forecasts(rounds, of), np.nan_to_num(known)

    def by_round(values: FloatArray) -> FloatArray:
        return np.bincount(of, values, minlength=len(rounds)).astype(np.float64)

    lost = by_round(np.where(supported, 0.0, forecast))
    wide = float(lost.mean()), float((~supported).sum() / len(rounds) - lost.mean())
    return Estimate(
        rounds=len(rounds),
        choices=len(of),
        matched=int((weight > 0).sum()),
        effective=effective,
        without_support=without,
        recorded=float(np.mean([one.in_time.sum() for one in rounds])),
        ips=_value(by_round(weight * x) + lost, wide),
        doubly_robust=_value(by_round(forecast + weight * (x - forecast)), wide),
    )


def _check(rounds: int, effective: float, without: float) -> None:
    if rounds < LEAST_ROUNDS:
        problem = f"{rounds} rounds were settled, at least {LEAST_ROUNDS} are needed"
    elif without > MOST_WITHOUT:
        problem = (
            f"the run could never have made {without:.1%} of this policy's choices; "
            f"at most {MOST_WITHOUT:.0%} may be extrapolated"
        )
    elif effective < LEAST_EFFECTIVE:
        problem = (
            f"the choices that both made are worth {effective:.0f} orders (effective sample size); "
            f"at least {LEAST_EFFECTIVE:.0f} are needed"
        )
    else:
        return
    more = "run longer, with policy.exploration above 0 and a wider policy.exploration_bound"
    raise NoSupportError(problem, more)


def _value(rounds: FloatArray, wide: tuple[float, float]) -> Value:
    mean = float(rounds.mean())
    half = quantile(len(rounds) - 1) * float(rounds.std(ddof=1)) / len(rounds) ** 0.5
    return Value(mean, mean - half - wide[0], mean + half + wide[1])


def _forecasts(rounds: list[Choices], of: IntArray) -> FloatArray:
    """Return the chance in [0, 1] that a choice is in time, of all choices one after another.

    Ridge regression over the log's own pairs, in two folds of blocks of rounds: each is forecast by
    what was learnt in the other alone, so that no forecast has seen what it is corrected by.
    """
    fold = np.array([one.view.round // _BLOCK % 2 for one in rounds])
    if len(set(fold.tolist())) < 2:
        fold = np.arange(len(rounds)) % 2
    # Devices measure some features only after a while: rounds differ in what they know.
    names = sorted({name for one in rounds for name in one.view.feature_names})
    found = np.zeros(len(of))
    for k in (0, 1):
        asked = [one for one, f in zip(rounds, fold.tolist(), strict=True) if f == k]
        others = [one for one, f in zip(rounds, fold.tolist(), strict=True) if f != k]
        found[fold[of] == k] = _forecast(
            _table([(one.view, one.ordered) for one in others], names),
            np.concatenate([one.in_time for one in others]),
            _table([(one.view, one.pairs) for one in asked], names),
            max(len(one.view.client_price) for one in rounds),
        )
    return found


_Table = tuple[IntArray, FloatArray]
"""int64[n], the client of each row, and float64[n, F], what is known of it."""


def _table(parts: list[tuple[RoundView, IntArray]], names: list[str]) -> _Table:
    """Return rates and sizes by their logarithms; NaN for what is not known."""
    clients = np.concatenate([view.pair_client[pairs] for view, pairs in parts]).astype(np.int64)
    columns = [
        np.concatenate([view.optional(name)[pairs] for view, pairs in parts]) for name in names
    ]
    x = np.column_stack([np.zeros((len(clients), 0)), *columns]).astype(np.float64)
    return clients, np.sign(x) * np.log1p(np.abs(x))


def _forecast(log: _Table, y: FloatArray, asked: _Table, clients: int) -> FloatArray:
    """Return the chances of the rows that are asked for, by features and the client's record."""
    whose, x = log
    wins, orders = (np.bincount(whose, one, minlength=clients) for one in (y, np.ones(len(y))))
    mean = float(y.sum() / max(1, len(y)))
    known = np.isfinite(x)
    count = np.maximum(1, known.sum(axis=0))
    centre = np.where(known, x, 0.0).sum(axis=0) / count
    scale = np.sqrt(np.where(known, (x - centre) ** 2, 0.0).sum(axis=0) / count) + 1e-9

    def design(table: _Table, own: FloatArray, times: int) -> FloatArray:
        """Leave the row itself out of a record that it was learnt from."""
        client, raw = table
        record = (wins[client] - own + _PRIOR * mean) / (orders[client] - times + _PRIOR)
        scaled = np.clip(np.nan_to_num((raw - centre) / scale), -5, 5)
        return np.column_stack((np.ones(len(raw)), record, scaled))

    rows = design(log, y, 1)
    penalty = _RIDGE * np.eye(rows.shape[1])
    penalty[0, 0] = 1e-9
    beta = np.linalg.solve(rows.T @ rows + penalty, rows.T @ y)
    found = design(asked, np.zeros(len(asked[0])), 0) @ beta
    return np.asarray(np.clip(found, 0.0, 1.0), dtype=np.float64)
