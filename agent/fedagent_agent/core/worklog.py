"""The log of the work: two lines a round, or one in five seconds that counts the others."""

from dataclasses import dataclass, field

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
class _Round:
    """A round that this device works on; `said` when a line named its beginning."""

    name: str
    said: bool
    trained: str = ""


@dataclass(slots=True)
class WorkLog:
    """Makes lines of events."""

    _edges: dict[str, str] = field(default_factory=dict)
    _rounds: Newest[tuple[str, int], _Round] = field(default_factory=lambda: Newest(_OPEN))
    _unsaid: int = 0
    _declined: str = ""
    _no_moments: str = ""
    _idle: bool = False
    _room_at: float = 0.0

    def lines_for(self, event: Emit, now: float) -> list[LogLine]:
        """Return the lines for an event; often none."""
        data = event.fields
        edge, number = str(data.get("edge", "")), int(str(data.get("round", 0)))
        match event.name:
            case "edge_joined":
                name = self._edges[edge] = safe_text(data["name"], limit=100) or edge[:8]
                return [LogLine(f"joined edge {name} at {safe_text(data['address'])}")]
            case "edge_lost":
                name = self._edges.pop(edge, edge[:8])
                return [LogLine(f"lost edge {name}: it no longer answers")]
            case "training":
                recipe = safe_text(data["recipe"], limit=100) or "a task"
                where = self._edges.get(edge, edge[:8])
                name = f"round {number} of {recipe} (run {str(data['run'])[:8]}) at {where}"
                said = self._has_room(2, now)
                self._rounds[edge, number] = _Round(name, said)
                return self._line(f"{name}: training") if said else []
            case "update" if rnd := self._rounds.get((edge, number)):
                seconds, count = int(str(data["lc_ms"])) / 1000, data["num_samples"]
                rnd.trained = f"trained {seconds:.2g} s on {count} sample{'s' * (count != 1)}, "
                self._declined = ""
            case "receipt":
                reason = safe_text(data["reason"], limit=100)
                end = _ENDS.get(ReceiptStatus(str(data["status"])), str(data["status"]))
                return self._end(edge, number, end.format(reason=reason), now)
            case "abandoned":
                return self._end(edge, number, "unfinished: the round ended first", now)
            case "declined":
                return self._decline(edge, number, event, now)
            case "opinion" if data["mode"] == "moments":
                return self._measure(safe_text(data["reason"]), data["samples"])
            case _:
                pass
        return []

    def allow(self, why: str) -> list[LogLine]:
        """Note why the device may not train now; empty if it may."""
        if bool(why) is self._idle:
            return []
        self._idle = bool(why)
        return [
            LogLine(f"does not train: {safe_text(why)}" if why else "may train again", bool(why))
        ]

    def _measure(self, why: str, samples: object) -> list[LogLine]:
        """Log the statistics before round 1, or once why there are none."""
        if why and why == self._no_moments:
            return []
        self._no_moments = why
        sent = f"sends the statistics of its {samples} samples before round 1"
        return [LogLine(f"sends no statistics before round 1: {why}" if why else sent)]

    def _end(self, edge: str, number: int, end: str, now: float) -> list[LogLine]:
        rnd = self._rounds.pop((edge, number), None)
        if rnd is None:
            return []
        if not (rnd.said or self._has_room(1, now)):
            self._unsaid += 1
            return []
        return self._line(f"{rnd.name}: {rnd.trained}{end}")

    def _decline(self, edge: str, number: int, event: Emit, now: float) -> list[LogLine]:
        """Warn once of each reason that lasts; log or count the others."""
        word = str(event.fields["reason"])
        why = f"{word}: {safe_text(event.fields['detail'], limit=500)}"
        rnd = self._rounds.pop((edge, number), None)
        if word not in _PASSING and why != self._declined:
            self._declined = why
            return [LogLine(f"declined round {number}: {why}", loud=True)]
        if (rnd is not None and rnd.said) or self._has_room(1, now):
            return self._line(f"declined round {number}: {why}")
        self._unsaid += 1
        return []

    def _has_room(self, lines: int, now: float) -> bool:
        """Reserve the time of so many lines, unless it is still taken."""
        if now < self._room_at:
            return False
        self._room_at = now + lines * LINE_S
        return True

    def _line(self, text: str) -> list[LogLine]:
        """Return a line; it counts the rounds since the last one that have none."""
        more, self._unsaid = self._unsaid, 0
        return [LogLine(f"{text}; {more} more rounds before it" if more else text)]


def samples_line(reason: str, n: int) -> str:
    """Return the line for samples that were not learnt from."""
    return _SAMPLES.get(reason, "{n} samples were refused: {reason}").format(n=n, reason=reason)
