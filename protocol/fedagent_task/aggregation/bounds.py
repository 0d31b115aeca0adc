"""Bounds on what one update may do, and claim, by what others of its edge do.

A norm is held against the median of the norms, a claim against the median of the claims, of the
round and of as many updates before it: as long as liars are fewer than half, both are honest.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import Struct

from .base import Contribution, Weighed
from .robust import Robust

KEPT = 64
"""Updates that an edge remembers."""
FEWEST = 8
"""A round of fewer is held against so many before it."""


class Told(Struct, frozen=True, array_like=True):
    """What an edge keeps of an update over rounds."""

    norm: float
    control_norm: float
    num_samples: float
    base_loss: float
    local_steps: float


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is usual at an edge, times what is allowed; 0 stands for no bound."""

    norm: float = 0.0
    control_norm: float = 0.0
    num_samples: float = 0.0
    base_loss: float = 0.0
    steps: tuple[float, float] = (0.0, 0.0)

    @classmethod
    def of(
        cls, round_: Sequence[Told], before: Sequence[Told], *, clip: float, cap: float
    ) -> "Bounds":
        """Return those of a round after others; a `clip` or `cap` of 0 is none."""
        pool = [*before[-max(FEWEST, len(round_)) :], *round_]
        usual = {
            name: _median([getattr(one, name) for one in pool]) for name in Told.__struct_fields__
        }
        steps = usual["local_steps"]
        return cls(
            clip * usual["norm"],
            clip * usual["control_norm"],
            cap * usual["num_samples"],
            cap * usual["base_loss"],
            (steps / cap, steps * cap) if cap else (0.0, 0.0),
        )

    def believed(self, told: Contribution) -> Contribution:
        """Return what is believed of an update."""
        low, high = self.steps
        steps = told.local_steps
        return replace(
            told,
            norm=min(told.norm, self.norm or told.norm),
            num_samples=min(told.num_samples, self.num_samples or told.num_samples),
            base_loss=min(told.base_loss, self.base_loss or told.base_loss),
            local_steps=min(max(steps, low), high) if steps > 0 and high else steps,
        )


def told_of(told: Contribution, control_norm: float) -> Told:
    """Return what is kept of an update."""
    return Told(told.norm, control_norm, told.num_samples, told.base_loss, told.local_steps)


def remembered(before: Sequence[Told], round_: Sequence[Told]) -> tuple[Told, ...]:
    """Return what is kept after a round."""
    return (*before, *round_)[-KEPT:]


def _median(values: Sequence[float]) -> float:
    """Return the median of what is above 0; 0 of nothing."""
    # Once per update over some dozens of numbers: an array would cost more than it saves.
    known = [value for value in values if value > 0]
    return float(statistics.median(known)) if known else 0.0


def _shorter(norm: float, limit: float) -> float:
    return limit / norm if limit and norm > limit else 1.0


def settled(
    rule: Robust,
    weigh: Callable[[Contribution], Weighed],
    round_: Sequence[tuple[Contribution, float]],
    before: Sequence[Told],
) -> list[Weighed]:
    """Return how a round's updates weigh once all are known, each with its control norm.

    `weigh` is the strategy's; `before` what is kept of former rounds.
    """
    told = [told_of(one, control_norm) for one, control_norm in round_]
    bounds = Bounds.of(told, before, clip=rule.clip, cap=rule.cap)
    return [
        replace(
            weigh(bounds.believed(one)),
            clip=_shorter(one.norm, bounds.norm),
            control_clip=_shorter(control_norm, bounds.control_norm),
        )
        for one, control_norm in round_
    ]
