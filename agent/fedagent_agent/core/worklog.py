"""The log of the work: a line for each round, or one in five seconds that counts the others."""

from dataclasses import dataclass, field

import msgspec

from fedagent_node.effects import Emit
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import DeclineReason, ReceiptStatus

from .effects import Newest

LINE_S = 5.0
"""So often a line of a round may come; what comes faster is counted in the next one."""
_OPEN = 64
_ENDS = {
    ReceiptStatus.ACCEPTED: "in time",
    ReceiptStatus.LATE: "late",
    ReceiptStatus.REJECTED: "refused: {reason}",
    ReceiptStatus.TOO_LATE: "too late: the round was closed",
    ReceiptStatus.EXPIRED: "expired: the edge does not know this order, or no longer does",
}
_PASSING = frozenset({DeclineReason.BUSY, DeclineReason.STALE, DeclineReason.UNSIGNED})
"""Reasons to decline that are gone by the next order, or that have a line of their own."""
_SAMPLES = {
    "dropped": "{n} samples were dropped: more arrived than the stream's buffer holds",
    "not_learnt": "{n} samples were not trained on: others replaced them",
    "strsaga_replaced": "minibatch replaces strsaga: the model is a neural network",
    "rotated": "the stream's file was replaced {n} times",
    "truncated": "the stream's file was truncated {n} times",
    "skipped_bytes": "{n} bytes were skipped: the stream's file grew faster than it was read",
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """A loud line is a warning."""

    text: str
    loud: bool = False


@dataclass(slots=True)
class WorkLog:
    """Makes lines of events."""

    _edges: dict[str, str] = field(default_factory=dict)
    _rounds: Newest[tuple[str, int], str] = field(default_factory=lambda: Newest(_OPEN))
    """What the line of a round tells so far, where this device works on it."""
    _unsaid: int = 0
    _declined: str = ""
    _no_moments: str = ""
    _idle: bool = False
    _room_at: float = 0.0
    samples: dict[str, int] = field(default_factory=dict)
    """Those that were not learnt from, by reason; the first of each is a warning."""

    def lines_for(self, event: Emit, now: float) -> list[LogLine]:
        """Return the lines for an event; often none."""
        data = event.fields
        edge, number = str(data.get("edge", "")), int(str(data.get("round", 0)))
        key, where = (edge, number), self._edges.get(edge, edge[:8])
        here, why = f"round {number} at {where}: ", safe_text(data.get("reason", ""), limit=100)
        match event.name:
            case "edge_joined":
                name = self._edges[edge] = safe_text(data["name"], limit=100) or edge[:8]
                return [LogLine(f"joined edge {name} at {safe_text(data['address'])}")]
            case "edge_lost":
                self._edges.pop(edge, None)
                return [LogLine(f"lost edge {where}: it no longer answers")]
            case "training":
                recipe = safe_text(data["recipe"], limit=100) or "a task"
                run = str(data["run"])[:8]
                self._rounds[key] = f"round {number} of {recipe} (run {run}) at {where}: "
            case "update" if (begun := self._rounds.get(key)) is not None:
                seconds, count = int(str(data["lc_ms"])) / 1000, data["num_samples"]
                done = f"trained {seconds:.2g} s on {count} sample{'s' * (count != 1)}, "
                self._rounds[key], self._declined = begun + done, ""
            case "update" if data.get("made_in"):
                # A later round goes on with it.
                before = [one for one in self._rounds if one[0] == edge]
                begun = self._rounds.pop(before[-1]) if before else f"round {data['made_in']}: "
                self._rounds[key] = f"{begun}gone on with in round {number}, "
            case "receipt" if data["status"] == ReceiptStatus.VOID:
                self._rounds.pop(key, None)
                return [LogLine(f"{here}void: {why}", loud=True)]
            case "receipt" if key in self._rounds:
                end = _ENDS.get(ReceiptStatus(str(data["status"])), str(data["status"]))
                return self._line(self._rounds.pop(key) + end.format(reason=why), now)
            case "abandoned":
                begun = self._rounds.pop(key, here)
                return self._line(f"{begun}unfinished: the round ended first", now)
            case "declined":
                return self._decline(key, event, now)
            case "samples":
                counters = msgspec.convert(data["counters"], dict[str, int])
                fresh = counters.keys() - self.samples.keys()
                self.samples |= counters
                texts = [
                    _SAMPLES.get(why, "{n} samples were refused: {why}").format(
                        n=counters[why], why=why
                    )
                    for why in fresh
                ]
                return [LogLine(text, loud=True) for text in texts]
            case "opinion" if data["mode"] == "moments":
                return self._measure(safe_text(data["reason"]), data["samples"])
        return []

    def allow(self, why: str) -> list[LogLine]:
        """Note why the device may not train now; empty if it may."""
        if bool(why) is self._idle:
            return []
        self._idle = bool(why)
        text = f"does not train: {safe_text(why)}" if why else "may train again"
        return [LogLine(text, loud=self._idle)]

    def _measure(self, why: str, samples: object) -> list[LogLine]:
        """Log the statistics before round 1, or once why there are none."""
        if why and why == self._no_moments:
            return []
        self._no_moments = why
        sent = f"sends the statistics of its {samples} samples before round 1"
        return [LogLine(f"sends no statistics before round 1: {why}" if why else sent)]

    def _decline(self, key: tuple[str, int], event: Emit, now: float) -> list[LogLine]:
        """Warn once of each reason that lasts."""
        word = str(event.fields["reason"])
        why = f"{word}: {safe_text(event.fields['detail'], limit=500)}"
        self._rounds.pop(key, None)
        if word not in _PASSING and why != self._declined:
            self._declined = why
            return [LogLine(f"declined round {key[1]}: {why}", loud=True)]
        return self._line(f"declined round {key[1]}: {why}", now)

    def _line(self, text: str, now: float) -> list[LogLine]:
        """Return a line that counts the rounds since the last one; none if that was just now."""
        if now < self._room_at:
            self._unsaid += 1
            return []
        self._room_at, more, self._unsaid = now + LINE_S, self._unsaid, 0
        return [LogLine(f"{text}; {more} more rounds before it" if more else text)]
