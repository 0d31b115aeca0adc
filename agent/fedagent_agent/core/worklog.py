"""The log of the work: a line for each round, or one in five seconds that counts the others."""

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
class WorkLog:
    """Makes lines of events."""

    _edges: dict[str, str] = field(default_factory=dict)
    _rounds: Newest[tuple[str, int], list[Emit]] = field(default_factory=lambda: Newest(_OPEN))
    """What the line of a round will tell that this device works on: most are only counted."""
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
                self._rounds[edge, number] = [event]
            case "update" if begun := self._rounds.get((edge, number)):
                begun.append(event)
                self._declined = ""
            case "update" if data.get("made_in"):
                # A later round goes on with it.
                before = [key for key in self._rounds if key[0] == edge]
                self._rounds[edge, number] = [
                    *(self._rounds.pop(before[-1]) if before else ()),
                    event,
                ]
            case "receipt" if data["status"] == ReceiptStatus.VOID:
                self._rounds.pop((edge, number), None)
                text = f"{self._begun(event)}void: {safe_text(data['reason'], limit=100)}"
                return [LogLine(text, loud=True)]
            case "receipt":
                end = _ENDS.get(ReceiptStatus(str(data["status"])), str(data["status"]))
                return self._end(event, end, now)
            case "abandoned":
                self._rounds.setdefault((edge, number), [event])
                return self._end(event, "unfinished: the round ended first", now)
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

    def _end(self, event: Emit, end: str, now: float) -> list[LogLine]:
        data = event.fields
        told = self._rounds.pop((str(data["edge"]), int(str(data["round"]))), None)
        if told is None:
            return []
        if now < self._room_at:
            self._unsaid += 1
            return []
        begun = self._begun(told[0]) + "".join(_done(one, told[0]) for one in told)
        return self._line(begun + end.format(reason=safe_text(data["reason"], limit=100)), now)

    def _begun(self, event: Emit) -> str:
        data, edge = event.fields, str(event.fields["edge"])
        where = self._edges.get(edge, edge[:8])
        if event.name == "update":
            return f"round {data['made_in']}: "
        if event.name != "training":
            return f"round {data['round']} at {where}: "
        recipe = safe_text(data["recipe"], limit=100) or "a task"
        return f"round {data['round']} of {recipe} (run {str(data['run'])[:8]}) at {where}: "

    def _decline(self, edge: str, number: int, event: Emit, now: float) -> list[LogLine]:
        """Warn once of each reason that lasts."""
        word = str(event.fields["reason"])
        why = f"{word}: {safe_text(event.fields['detail'], limit=500)}"
        self._rounds.pop((edge, number), None)
        if word not in _PASSING and why != self._declined:
            self._declined = why
            return [LogLine(f"declined round {number}: {why}", loud=True)]
        return self._line(f"declined round {number}: {why}", now)

    def _line(self, text: str, now: float) -> list[LogLine]:
        """Return a line that counts the rounds since the last one; none if that was just now."""
        if now < self._room_at:
            self._unsaid += 1
            return []
        self._room_at, more, self._unsaid = now + LINE_S, self._unsaid, 0
        return [LogLine(f"{text}; {more} more rounds before it" if more else text)]


def _done(event: Emit, first: Emit) -> str:
    data = event.fields
    if event.name != "update":
        return ""
    if first.name == "update" or first.fields["round"] != data["round"]:
        return f"gone on with in round {data['round']}, "
    seconds, count = int(str(data["lc_ms"])) / 1000, data["num_samples"]
    return f"trained {seconds:.2g} s on {count} sample{'s' * (count != 1)}, "


def samples_line(reason: str, n: int) -> str:
    """Return the line for samples that were not learnt from."""
    return _SAMPLES.get(reason, "{n} samples were refused: {reason}").format(n=n, reason=reason)
