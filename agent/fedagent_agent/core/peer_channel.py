"""One neighbour in one slot: what it has had from us, what we owe it, whether it lives.

A line carries *states*, not a stream: a newer content replaces what came before, so a
lost one need not be resent once a newer one is on its way. Contents are numbered; the
number of the newest one is repeated, ever more patiently, until it is acknowledged.
How long that takes is measured: where post is slow, contents and repeats are spaced wider,
so that a slow relay gets fewer of them instead of more.
A note with number 0 carries an acknowledgement and nothing else, and is never answered,
so that two quiet neighbours stay quiet.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from .peer_settings import MAX_NOTES, Pace

PER_INCARNATION = MAX_NOTES + 1
"""Numbers of one life of an agent; the next life begins at the next multiple."""
_NEVER = float("inf")


class Jitter(Protocol):
    """What is wanted of a seeded generator; `random.Random` spares a device numpy's memory."""

    def uniform(self, low: float, high: float, /) -> float:
        """Return a number between two."""
        ...


class Delivery(Enum):
    """What a note that came in is."""

    FRESH = "fresh"
    OLD = "old"  # a duplicate, or overtaken by a newer one
    ACK = "ack"  # carries no content


@dataclass(slots=True)
class PeerChannel:
    """The state of one neighbour.

    Attributes:
        pace: Its bounds.
        begun: When the slot began here, seconds.
        seq: Number of the newest content sent; at first `PER_INCARNATION` times the agent's starts.
        dirty: There is content newer than that.
        acked: Largest own number that the neighbour has had.
        taken: Largest number of the neighbour's that was taken.
        contents: How many contents were sent, repeats left out.
        notes: How many notes were sent.
        dropped: It owed an answer for too long, in this slot or the one before.
        forgot: Its last note was the first of a new life: it has lost what it had.
        rtt_s: From a content to its acknowledgement, smoothed; 0 where none was measured.
    """

    pace: Pace
    begun: float
    seq: int
    unsent: bool = True
    acked: int = field(init=False)
    taken: int = 0
    contents: int = 0
    notes: int = 0
    dropped: bool = False
    forgot: bool = False
    rtt_s: float = 0.0
    _first_at: float = 0.0
    _unsent_at: float = field(init=False)
    _heard_at: float = field(init=False)
    _sent_at: float = -_NEVER
    _repeat_at: float = _NEVER
    _patience_s: float = field(init=False)
    _ack_at: float = _NEVER

    def __post_init__(self) -> None:
        """Begin with nothing sent and nothing heard."""
        self.acked = self.seq
        self._heard_at = self._unsent_at = self.begun
        self._patience_s = self._repeat_s

    @property
    def complete(self) -> bool:
        """The neighbour has had everything, and has spoken in this slot."""
        return not self.unsent and self.acked >= self.seq and self.taken > 0

    def next(self, now: float, seq: int, pace: Pace) -> "PeerChannel":
        """Return the line of the next slot: what was learnt of the neighbour stays."""
        return PeerChannel(pace, now, seq, dropped=self.dropped, rtt_s=self.rtt_s)

    def change(self, now: float) -> None:
        """Note that there is newer content."""
        if not self.unsent:
            self.unsent, self._unsent_at = True, now

    def hear(self, seq: int, ack: int, now: float) -> Delivery:
        """Note what came from the neighbour, whatever it says."""
        self._heard_at = now
        self.dropped = self.forgot = False
        fresh = seq > self.taken
        if fresh and self.taken and seq // PER_INCARNATION > self.taken // PER_INCARNATION:
            self.forgot = True
            self.change(now)
        elif self.acked < ack <= self.seq:
            self.acked = ack
            if ack == self.seq:
                trip = min(now - self._first_at, self.pace.longest_s)
                self.rtt_s = 0.5 * (self.rtt_s + trip) if self.rtt_s else trip
        if self.acked >= self.seq:
            self._repeat_at, self._patience_s = _NEVER, self._repeat_s
        if seq == 0:
            return Delivery.ACK
        # A repeat means that our acknowledgement was lost: send it at once.
        self._ack_at = min(self._ack_at, now + self.pace.ack_s if fresh else now)
        self.taken = max(self.taken, seq)
        return Delivery.FRESH if fresh else Delivery.OLD

    def silent(self, now: float) -> bool:
        """Drop the neighbour if it owes an answer for too long; True when that is new."""
        waiting = not self.complete and not self.dropped
        if waiting and now >= self._heard_at + self.pace.silence_s:
            self.dropped = True
            return True
        return False

    def wants(self, now: float) -> bool:
        """Return whether a note should go out now."""
        return now >= self._next()

    def content(self, now: float) -> bool | None:
        """Return what a note that goes out now should be: content, an acknowledgement, or None.

        Content that waits only for the gap goes along when there is a note to ride with.
        """
        if not self._open(now):
            return None
        if self.unsent or now >= self._repeat_at:
            return True
        return False if self._ack_at < _NEVER else None

    def stamp(self, now: float, rng: Jitter, *, content: bool) -> tuple[int, int]:
        """Count a note that goes out; return its number and its acknowledgement."""
        self.notes += 1
        self._ack_at = _NEVER
        if not content:
            return 0, self.taken
        if self.unsent:
            self.seq += 1
            self.contents += 1
            self.unsent = False
            self._first_at = now
            self._patience_s = self._repeat_s
        self._sent_at = now
        # Jitter, so that neighbours do not repeat themselves in chorus.
        self._repeat_at = now + self._patience_s * rng.uniform(0.8, 1.2)
        self._patience_s = min(1.5 * self._patience_s, self.pace.longest_s)
        return self.seq, self.taken

    @property
    def due(self) -> float:
        """When something is to be done although nothing came; inf: never."""
        waiting = not self.complete and not self.dropped
        return min(self._next(), self._heard_at + self.pace.silence_s if waiting else _NEVER)

    @property
    def _gap_s(self) -> float:
        """Least time from the newest content to the next."""
        if not self.pace.gap_s:
            return 0.0
        gap = max(self.pace.gap_s, 0.25 * self.rtt_s)
        # Unanswered: post may be slow, and what comes meanwhile goes along later.
        return gap if self.acked >= self.seq else max(gap, 0.4 * self._patience_s)

    @property
    def _repeat_s(self) -> float:
        """First wait for an acknowledgement."""
        return max(self.pace.repeat_s, min(2 * self.rtt_s, self.pace.longest_s))

    def _open(self, now: float) -> bool:
        return self.notes < self.pace.max_notes and now < self.begun + self.pace.life_s

    def _next(self) -> float:
        """Return when the next note is to go out."""
        fresh = max(self._sent_at + self._gap_s, self._unsent_at + self.pace.hold_s)
        content = fresh if self.unsent else self._repeat_at
        at = min(max(content, self.begun), self._ack_at)
        return at if self._open(at) else _NEVER
