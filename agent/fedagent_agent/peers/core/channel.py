"""One neighbour in one slot: which states it has had, what is owed to it, whether it answers.

A channel carries *states*, not a stream: a newer state replaces what came before, so a lost
one need not be resent once a newer one is on its way. States are numbered; the newest is
repeated, ever more patiently, until it is acknowledged. The round trip is measured: where it
is long, states and repeats are spaced wider, so that a slow relay gets fewer envelopes.
Number 0 is an acknowledgement alone and is never answered, so that two neighbours that agree
fall silent.
"""

import math
from dataclasses import dataclass, field, replace
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


PER_INCARNATION = MAX_ENVELOPES + 1
"""Numbers of one incarnation of an agent; the next one begins at the next multiple."""
_NEVER = math.inf


@dataclass(slots=True)
class PeerChannel:
    """The state of one neighbour; times are seconds."""

    settings: SlotSettings
    begun: float
    seq: int  # number of the newest state sent; at first `PER_INCARNATION` times the incarnation
    dropped: bool = False  # it owed an answer for too long, in this slot or the one before
    rtt_s: float = 0.0  # from a state to its acknowledgement, smoothed; 0 until measured
    acked: int = field(init=False)  # largest own number that the neighbour has had
    taken: int = 0  # largest number of the neighbour's that was taken
    sent: int = 0
    restarted: bool = False  # its last envelope was the first of a new incarnation
    send_at: float = _NEVER  # when a state that was not sent yet is to go out; inf: there is none
    _first_sent_at: float = 0.0
    _sent_at: float = -_NEVER
    _repeat_at: float = _NEVER
    _ack_at: float = _NEVER
    heard: bool = False  # anything of it came in this slot
    _heard_at: float = field(init=False)
    _owes_since: float = -_NEVER
    _patience_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.acked = self.seq
        self._heard_at = self.begun
        self._patience_s = self._first_repeat_s

    def next_slot(self, settings: SlotSettings, now: float, seq: int) -> "PeerChannel":
        """Return the channel of the next slot, which knows the round trip and who is silent."""
        return PeerChannel(settings, now, seq, dropped=self.dropped, rtt_s=self.rtt_s)

    def wants_state(self, at: float | None) -> None:
        """Schedule the newest state; None: the neighbour needs none."""
        self.send_at = _NEVER if at is None else min(self.send_at, at)

    def receive(self, seq: int, ack: int, now: float) -> bool:
        """Note the numbers of an envelope; return whether it carries a new state."""
        woke, self.heard = not self.heard, True
        self._heard_at = now
        self.dropped = False
        first = seq > 0 and not self.taken
        fresh = seq > self.taken
        self.restarted = fresh and 0 < self.taken // PER_INCARNATION < seq // PER_INCARNATION
        if not self.restarted and self.acked < ack <= self.seq:
            self.acked = ack
            if ack == self.seq:
                # What it had to begin the slot for before it could answer took no way.
                sent_at = self._sent_at if woke else self._first_sent_at
                rtt = min(now - sent_at, self.settings.max_repeat_s)
                # Of a repeat nobody knows which copy is answered: it may be a loss that took long.
                repeated = self._sent_at > self._first_sent_at
                if self.rtt_s:
                    gain = 0.125 if repeated else 0.5
                else:
                    gain = 0.25 if repeated and not woke else 1.0
                self.rtt_s += gain * (rtt - self.rtt_s)
        if self.acked >= self.seq:
            self._repeat_at, self._patience_s = _NEVER, self._first_repeat_s
        if seq == 0:
            return False
        # A repeat means that our acknowledgement was lost: send it at once.
        wait_s = self.stretched(self.settings.ack_s) if fresh else 0.0
        self._ack_at = min(self._ack_at, now + wait_s)
        self.taken = max(self.taken, seq)
        if first and self.acked < self.seq:
            # It may not have been there before, and would wait for what was sent to nobody.
            self._patience_s = self._first_repeat_s
            self._repeat_at = min(self._repeat_at, now + self._patience_s)
        return fresh

    def stretched(self, wait_s: float) -> float:
        """Return how long something waits for company, more where the round trip is long."""
        return max(wait_s, 0.3 * self.rtt_s)

    def falls_silent(self, now: float) -> bool:
        """Drop the neighbour if it owes an answer for too long; True when that is new."""
        if now < self._silent_at:
            return False
        self.dropped = True
        return True

    def stamp(self, now: float, rng: Jitter) -> tuple[int, int] | None:
        """Count an envelope that is due; return its number and acknowledgement.

        Number 0: an acknowledgement alone; the number of the last one: a repeat.
        """
        if now < self._next:
            return None
        fresh, repeat = self.send_at < _NEVER, now >= self._repeat_at
        self.sent += 1
        self._ack_at = _NEVER
        # A state that only waits for the gap rides along.
        if not fresh and not repeat:
            return 0, self.taken
        if fresh:
            if self.acked >= self.seq:
                self._owes_since = now
            self.seq += 1
            self.send_at = _NEVER
            self._first_sent_at = now
            self._patience_s = self._first_repeat_s
        self._sent_at = now
        # Jitter, so that neighbours do not repeat themselves in chorus.
        self._repeat_at = now + self._patience_s * rng.uniform(0.8, 1.2)
        # Who has answered in this slot is there: what was lost must not wait ever longer.
        longest = 1.5 * self._first_repeat_s if self._is_prompt else math.inf
        self._patience_s = min(1.5 * self._patience_s, longest, self.settings.max_repeat_s)
        return self.seq, self.taken

    @property
    def due(self) -> float:
        """When something is to be done although nothing came; inf: never."""
        return min(self._next, self._silent_at)

    @property
    def _next(self) -> float:
        if self.sent >= self.settings.max_envelopes:
            return _NEVER
        state = max(self.send_at, self._sent_at + self._gap_s)
        at = min(state, self._repeat_at, self._ack_at)
        return at if at < self.begun + self.settings.life_s else _NEVER

    @property
    def _silent_at(self) -> float:
        answered = self.acked >= self.seq and self.taken > 0
        if answered or self.dropped:
            return _NEVER
        return max(self._heard_at, self._owes_since) + self.settings.silence_s

    @property
    def _gap_s(self) -> float:
        gap = max(self.settings.gap_s, 0.25 * self.rtt_s)
        # Unanswered: the relay may be slow, and what comes meanwhile goes along later.
        return gap if self.acked >= self.seq else max(gap, 0.4 * self._patience_s)

    @property
    def _is_prompt(self) -> bool:
        """It has answered in this slot, and how long that takes is known."""
        return self.taken > 0 and self.rtt_s > 0

    @property
    def _first_repeat_s(self) -> float:
        settings = self.settings
        least = settings.prompt_s if self._is_prompt else settings.repeat_s
        return max(least, min(2 * self.rtt_s, settings.max_repeat_s))
