"""Updates in time per round under another policy: IPS, self-normalised, doubly robust.

The utility of a round is a sum over its pairs, so each pair is weighed by its own propensity p
(semi-bandit feedback; Swaminathan et al. 2017 and Dudik et al. 2011 for single actions):

    ips_t = sum X / p over choices that were ordered
    snips = (sum X / p) / (sum 1 / p), times the mean number of choices that have support
    dr_t  = sum m + sum (X - m) / p, with m the forecast of `regression`

Choices that the log would never have made are forecast by m, and widen the interval by all that
could be: from nothing in time to everything. Intervals are Student's over rounds.
"""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_protocol.errors import FedagentError

from .log import Choices, choices_of
from .regression import forecasts

__all__ = ["Choices", "Estimate", "NoSupportError", "Value", "choices_of", "estimated"]

LEAST_ROUNDS = 20
LEAST_EFFECTIVE = 30.0
"""Orders, by their effective sample size, below which a mean says nothing."""
MOST_WITHOUT = 0.1
"""Share of choices that the log may have no support for."""
_LEVEL = 0.975


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
    model = forecasts(rounds)
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


def student(dof: int) -> float:
    """Return the 97.5 % quantile of Student's t, from 19 degrees of freedom on to 1e-4."""
    z = NormalDist().inv_cdf(_LEVEL)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / dof + second / dof**2 + third / dof**3


def _value(rounds: FloatArray, wide: tuple[float, float]) -> Value:
    mean = float(rounds.mean())
    half = student(len(rounds) - 1) * float(rounds.std(ddof=1)) / len(rounds) ** 0.5
    return Value(mean, mean - half - wide[0], mean + half + wide[1])
