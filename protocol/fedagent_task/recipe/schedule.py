"""The step size of each round, as a recipe's ``[learner]`` schedules it."""

import math

from fedagent_task.recipe.spec import LearnerSpec


def rate_at(spec: LearnerSpec, number: int) -> float:
    """Return the step size of round `number`, counted from 1; never 0.

    A warm-up rises in equal steps to `spec.rate`; the schedule begins after it. ``cosine`` and
    ``linear`` fall towards 0 over `schedule_rounds` and stay at the last of these rounds' rate.
    """
    done = max(0, number - 1)
    if done < spec.warmup_rounds:
        return spec.rate * ((done + 1) / spec.warmup_rounds)
    return spec.rate * _factor(spec, done - spec.warmup_rounds)


def _factor(spec: LearnerSpec, done: int) -> float:
    rounds = max(1, spec.schedule_rounds)
    share = min(done, rounds - 1) / rounds
    match spec.schedule:
        case "step":
            return _power(spec.gamma, done // rounds)
        case "exponential":
            return _power(spec.gamma, done)
        case "cosine":
            return 0.5 * (1.0 + math.cos(math.pi * share))
        case "linear":
            return 1.0 - share
        case _:
            return 1.0


def _power(gamma: float, exponent: int) -> float:
    """Return the power, kept from becoming 0: a step of no size would end the learning unsaid."""
    return max(gamma**exponent, 1e-12)
