"""Belief propagation as one client of many: asynchronous, over links that lose (GDA section V).

The arithmetic is that of `coordinator/policies/sets/beliefs.py` (ALGORITHMS section 5) with weights
that two neighbours agree on alone; a message is l_ij = 2 atanh(c_ij tanh(h / 2)), c = 2 w - 1, h
the sum of own log ratio and the messages of i's neighbours but j. docs/democratized.md has the
weights, and why it converges on any graph, in any order, and whatever one liar sends.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from fedagent_protocol.peers import BeliefMessage

from .channel import SlotSettings

COUPLING = 0.9
DECAY = 3.7


@dataclass(slots=True)
class _Neighbour:
    """What is known of a neighbour; distance, coupling and silence outlast a slot."""

    distance: float
    coupling: float = 0.0  # 2 w - 1; 0 before its first message
    silent: bool = False
    received: float = 0.0  # its message to this client, a log ratio
    message: float = 0.0  # this client's message to it as it should be now
    low: float = 0.0  # the messages that it may hold: the one in state number `seq`, and
    high: float = 0.0  # what went along with later states
    seq: int = 0
    sweeps: int = 0  # new messages that were sent to it
    owed: bool = True  # it gets one whatever it is: none was sent in this stage
    heard: bool = False
    confirmed: bool = False


class Beliefs:
    """One client's beliefs, slot by slot; `distances` of neighbours are in any unit.

    `tolerance` is the largest change of a log ratio that is not sent, in this stage of the slot.
    """

    def __init__(self, distances: Mapping[str, float], settings: SlotSettings) -> None:
        self.settings = settings
        self.tolerance = settings.tolerance
        self._around = {peer: _Neighbour(far) for peer, far in sorted(distances.items())}
        self._typical = _median(list(distances.values()))
        self._own = self._begun = self._changed_at = 0.0

    def begin(self, opinion: float | None, now: float) -> None:
        """Start a slot with this client's opinion in [0, 1]; None says nothing."""
        self._begun = self._changed_at = now
        self.tolerance = self.settings.tolerance
        self._own = _log_ratio(opinion)
        for around in self._around.values():
            around.received = around.message = around.low = around.high = 0.0
            around.seq, around.sweeps, around.owed = 0, 0, True
            around.heard = around.confirmed = False
        self._recompute(now)

    def refine(self, tolerance: float, now: float) -> None:
        """Go on at a smaller tolerance; every neighbour gets a message, as at the start."""
        self.tolerance, self._changed_at = tolerance, now
        for around in self._around.values():
            around.seq, around.owed, around.confirmed = 0, True, False

    def receive(self, peer: str, message: BeliefMessage, now: float) -> None:
        """Take a neighbour's newest message."""
        around, before = self._around[peer], self.log_belief
        around.coupling = self._coupling(around.distance, message)
        around.heard, around.silent = True, False
        limit = 2 * math.atanh(around.coupling)  # what an honest neighbour can send
        around.received = max(-limit, min(message.ratio, limit))
        if not abs(self.log_belief - before) <= self.tolerance:
            self._changed_at = now
        self._recompute(now)

    def confirm(self, peer: str, ack: int) -> None:
        """Note that a neighbour has the states up to a number."""
        around = self._around[peer]
        around.confirmed |= 0 < around.seq <= ack

    def forget(self, peer: str) -> None:
        """Note that a neighbour has lost what it had."""
        self._around[peer].confirmed = False

    def silence(self, peer: str, now: float, *, silent: bool) -> None:
        """Leave a neighbour out, or take it back."""
        if self._around[peer].silent is not silent:
            self._around[peer].silent = silent
            self._recompute(now)

    def unsent(self, peer: str) -> bool:
        """Return whether a neighbour is to get a new message."""
        around = self._around[peer]
        if around.sweeps >= self.settings.max_sweeps:
            return False
        return around.owed or _residual(around) > self.tolerance

    def message(self, peer: str, seq: int, *, refine: bool = False) -> BeliefMessage | None:
        """Return the message that goes into state number `seq`; None: the neighbour has it.

        `refine` sends along what has changed less than the tolerance.
        """
        around = self._around[peer]
        if self.unsent(peer):
            around.low = around.high = around.message
            around.seq, around.owed, around.confirmed = seq, False, False
            around.sweeps += 1
        if around.confirmed and not (refine and _residual(around)):
            return None
        around.low, around.high = sorted((around.low, around.message, around.high))[::2]
        return BeliefMessage(
            degree=max(1, len(self._around)),
            ratio=around.message,
            typical=self._typical,
            distance=around.distance,
        )

    @property
    def still_at(self) -> float:
        """When these beliefs stand still if nothing comes before; inf: they do not."""
        return self._changed_at + self.settings.quiet_s if self.converged else math.inf

    @property
    def limit(self) -> float:
        """When beliefs are used as they are."""
        return self._begun + self.settings.beliefs_s

    @property
    def converged(self) -> bool:
        """No message would change, and every neighbour that answers has the newest one."""
        return self.residual <= self.tolerance and all(
            around.silent or (around.confirmed and around.heard) for around in self._around.values()
        )

    @property
    def residual(self) -> float:
        """The largest difference between a message as it should be and one that was sent."""
        return max(map(_residual, self._around.values()), default=0.0)

    @property
    def log_belief(self) -> float:
        """Log odds of state 1."""
        return self._own + sum(a.received for a in self._around.values() if not a.silent)

    @property
    def belief(self) -> float:
        """Marginal of state 1, in [0, 1]."""
        return 0.5 * (1 + math.tanh(0.5 * self.log_belief))

    def _recompute(self, now: float) -> None:
        live = {peer: a.received for peer, a in self._around.items() if not a.silent}
        for peer, around in self._around.items():
            # A sum of the others, not the whole minus one: own may be infinite.
            inside = self._own + sum(ratio for other, ratio in live.items() if other != peer)
            around.message = 2 * math.atanh(around.coupling * math.tanh(0.5 * inside))
            if _residual(around) > self.tolerance:
                self._changed_at = now

    def _coupling(self, distance: float, message: BeliefMessage) -> float:
        far, usual = max(distance, message.distance), 0.5 * (self._typical + message.typical)
        if usual > 0:
            near = math.exp2(-math.pow(min(far / usual, 1e6), DECAY))
        else:
            near = 0.0 if far > 0 else 1.0
        return COUPLING / max(1, max(len(self._around), message.degree) - 1) * near


def _residual(around: _Neighbour) -> float:
    return max(around.message - around.low, around.high - around.message)


def _log_ratio(opinion: float | None) -> float:
    """Return ln(phi(1) / phi(0)) with phi(1) = opinion squared."""
    if opinion is None or math.isnan(opinion):
        return 0.0
    square = max(0.0, min(opinion, 1.0)) ** 2
    if square in (0, 1):
        return math.inf if square else -math.inf
    return math.log(square) - math.log1p(-square)


def _median(values: list[float]) -> float:
    """Return the median, 0 of none; `statistics` would cost an idle device half a megabyte."""
    middle, odd = divmod(len(values), 2)
    ordered = sorted(values)
    if not ordered:
        return 0.0
    return ordered[middle] if odd else 0.5 * (ordered[middle - 1] + ordered[middle])
