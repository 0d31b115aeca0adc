"""Updates in time per round under another policy: IPS, self-normalised, doubly robust.

The utility of a round is a sum over its pairs, so each pair is weighed by its own propensity p
(semi-bandit feedback; Swaminathan et al. 2017 and Dudik et al. 2011 for single actions):

    ips_t = sum X / p over choices that were ordered
    snips = (sum X / p) / (sum 1 / p), times the mean number of choices that have support
    dr_t  = sum m + sum (X - m) / p, with m the forecast of a ridge regression

Choices that the log would never have made are forecast by m, and widen the interval by all that
could be: from nothing in time to everything. Intervals are Student's over rounds.
"""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.books.rounds import Logged
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
    self_normalised: Value
    doubly_robust: Value


def estimated(rounds: list[Choices]) -> Estimate:
    """Return the estimates over recorded rounds.

    Raises:
        NoSupportError: The log cannot say.
    """
    known = [one.of_pairs() for one in rounds]
    chosen = sum(len(one.pairs) for one in rounds)
    weights = np.concatenate(
        [np.zeros(0), *(_weights(one, x) for one, x in zip(rounds, known, strict=True))]
    )
    effective = float(weights.sum() ** 2 / max(1e-12, float((weights**2).sum())))
    without = sum(int((one.chance <= 0).sum()) for one in rounds) / max(1, chosen)
    _check(len(rounds), effective, without)
    model = _forecasts(rounds)
    ips, dr, gain, mass, size, missing = (np.zeros(len(rounds)) for _ in range(6))
    for t, (one, x, m) in enumerate(zip(rounds, known, model, strict=True)):
        w = _weights(one, x)
        ordered, supported = np.isfinite(x), one.chance > 0
        mine = w[ordered] * x[ordered]
        lost = float(m[~supported].sum())
        ips[t] = mine.sum() + lost
        dr[t] = m.sum() + (w[ordered] * (x[ordered] - m[ordered])).sum()
        gain[t], mass[t] = mine.sum(), w[ordered].sum()
        size[t], missing[t] = supported.sum(), (~supported).sum()
    lost_mean = float((ips - gain).mean())
    rate = gain.sum() / mass.sum()
    # The ratio's own spread, linearised: what each round adds beyond the common rate.
    sn = size.mean() * (rate + (gain - rate * mass) / mass.mean())
    wide = (lost_mean, float(missing.mean()) - lost_mean)
    return Estimate(
        rounds=len(rounds),
        choices=chosen,
        matched=int((weights > 0).sum()),
        effective=effective,
        without_support=without,
        recorded=float(np.mean([one.in_time.sum() for one in rounds])),
        ips=_value(ips, wide),
        self_normalised=_value(sn + lost_mean, wide),
        doubly_robust=_value(dr, wide),
    )


def _weights(one: Choices, known: FloatArray) -> FloatArray:
    """Return float64[S], 1 / p of the choices that were ordered, else 0."""
    safe = np.where(one.chance > 0, one.chance, 1.0)
    return np.where(np.isfinite(known) & (one.chance > 0), 1.0 / safe, 0.0)


def _check(rounds: int, effective: float, without: float) -> None:
    more = "run longer, or explore more (policy.exploration, policy.exploration_bound)"
    if rounds < LEAST_ROUNDS:
        raise NoSupportError(
            f"{rounds} rounds were settled, at least {LEAST_ROUNDS} are needed", more
        )
    if without > MOST_WITHOUT:
        problem = (
            f"the run could never have made {without:.1%} of this policy's choices; "
            f"at most {MOST_WITHOUT:.0%} may be extrapolated"
        )
        raise NoSupportError(
            problem, "set policy.exploration above 0 and a wider exploration_bound"
        )
    if effective < LEAST_EFFECTIVE:
        problem = (
            f"the choices that both made are worth {effective:.0f} orders (effective sample size); "
            f"at least {LEAST_EFFECTIVE:.0f} are needed"
        )
        raise NoSupportError(problem, more)


def _value(rounds: FloatArray, wide: tuple[float, float]) -> Value:
    mean = float(rounds.mean())
    half = quantile(len(rounds) - 1) * float(rounds.std(ddof=1)) / len(rounds) ** 0.5
    return Value(mean, mean - half - wide[0], mean + half + wide[1])


def _forecasts(rounds: list[Choices]) -> list[FloatArray]:
    """Return float64[S] in [0, 1] for each round: the chance that a choice is in time.

    Ridge regression over the log's own pairs, in two folds of blocks of rounds: each is forecast by
    what was learnt in the other alone, so that no forecast has seen what it is corrected by.
    """
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
