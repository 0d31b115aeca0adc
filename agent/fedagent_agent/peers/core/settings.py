"""Bounds of one slot: how long neighbours exchange states, how often, and how exactly."""

from dataclasses import dataclass, replace
from typing import Protocol

from fedagent_task.recipe.spec import PeersSpec

MIN_SLOT_S = 0.5
MAX_ENVELOPES = 2**16 - 1
"""Per neighbour and slot, so that sequence numbers of one incarnation never reach the next's."""


class Jitter(Protocol):
    """A seeded generator; `random.Random` is enough and costs a device less than numpy's."""

    def uniform(self, low: float, high: float, /) -> float:
        """Return a number between two."""
        ...


@dataclass(frozen=True, slots=True)
class SlotSettings:
    """Bounds of one slot; docs/democratized.md (Bounds) has what each does.

    Attributes:
        tolerance: Largest change of a log ratio that is not sent. Beliefs are then at most 2.5 x
            tolerance x degree away from the fixed point: each unsent change grows to at most
            tolerance / (1 - 0.9) per message, and the logistic function has slope 1/4.
        close: Indices are that near where another stage follows, in tolerance / N. On the networks
            of `bench.experiments.agreement` no belief is more than 3.8 x tolerance off.
        finer: What a further stage multiplies the tolerance by; `stages`: how many follow at most.
        hold_s, spare_s: How long news of gossip wait for more, along the tree and beside it. Of two
            neighbours that are not next in the tree one waits twice as long, so that it need not
            repeat what both have heard.
    """

    keep: int = 5  # K, how many train
    mu: float = 0.01  # weight of exploration in the index
    cold_start: bool = True  # everybody trains once first
    tolerance: float = 3e-3
    close: float = 8.0
    finer: float = 0.01
    stages: int = 3
    max_sweeps: int = 50
    quiet_s: float = 0.03
    beliefs_s: float = 6.0
    gossip_s: float = 3.0
    gap_s: float = 0.04
    hold_s: float = 0.015
    spare_s: float = 0.3
    ack_s: float = 0.05
    repeat_s: float = 0.4
    prompt_s: float = 0.15
    max_repeat_s: float = 1.0
    silence_s: float = 2.0
    life_s: float = 30.0
    max_envelopes: int = 256


def settings_for(task: PeersSpec, remaining_s: float) -> SlotSettings:
    """Return bounds by which a slot decides before its call ends."""
    time, usual = max(MIN_SLOT_S, remaining_s), SlotSettings()
    silence_s = min(usual.silence_s, 0.2 * time)
    return replace(
        usual,
        keep=task.best,
        mu=task.mu,
        cold_start=task.cold_start,
        beliefs_s=min(usual.beliefs_s, 0.4 * time),
        gossip_s=min(usual.gossip_s, 0.35 * time),
        silence_s=silence_s,
        repeat_s=min(usual.repeat_s, 0.4 * silence_s),
        prompt_s=min(usual.prompt_s, 0.2 * silence_s),
    )
