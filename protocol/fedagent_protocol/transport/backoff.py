"""Waiting times between attempts: exponential with full jitter."""

import random
from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Full-jitter backoff: uniform between zero and a bound that doubles.

    After power returns to a hundred devices, full jitter spreads their
    attempts; a fixed or merely scaled delay would keep them in step.
    """

    first_s: float = 0.2
    cap_s: float = 20.0
    attempt: int = 0

    def next(self) -> float:
        """Return how long to wait now."""
        bound = min(self.cap_s, self.first_s * 2.0 ** min(self.attempt, 30))
        self.attempt += 1
        return random.uniform(0.0, bound)  # noqa: S311 - spreads load, guards nothing

    def reset(self) -> None:
        """Start again with the shortest bound."""
        self.attempt = 0
