"""The log of the device's work: a line or two per round, and fast rounds in sums."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedagent_node.effects import Emit
from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import DeclineReason, ReceiptStatus

LINE_S = 5.0
"""So often a line of a round may come; what comes faster is summed up."""
SUM_S = 10.0
_OPEN = 64
_ENDS = {
    ReceiptStatus.ACCEPTED: "in time",
    ReceiptStatus.LATE: "late",
    ReceiptStatus.REJECTED: "refused",
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
    """A round that this device works on; `logged` when a line named its beginning."""

    task: str
    logged: bool
    seconds: float = 0.0
    samples: int = 0


@dataclass(slots=True)
class WorkLog:
    """Makes lines of events and of `tick`, which is wanted every few seconds."""

    _edges: dict[str, str] = field(default_factory=dict)
    _rounds: OrderedDict[tuple[str, int], _Round] = field(default_factory=OrderedDict)
    _ends: Counter[str] = field(default_factory=Counter)
    _trained_s: list[float] = field(default_factory=list)
    _since: float = 0.0
    _task: str = ""
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
                return [
                    *self.tick(now, over=True),
                    LogLine(f"lost edge {name}: it no longer answers"),
                ]
            case "training":
                return self._begin(edge, number, data, now)
            case "update" if rnd := self._rounds.get((edge, number)):
                rnd.seconds = int(str(data["lc_ms"])) / 1000
                rnd.samples = int(str(data["num_samples"]))
                self._declined = ""
            case "receipt":
                reason = safe_text(data["reason"], limit=100)
                end = _ENDS.get(ReceiptStatus(str(data["status"])), str(data["status"]))
                said = f"{end}: {reason}" if reason and end == "refused" else end
                return self._end(edge, number, end, said, now)
            case "abandoned":
                end = "unfinished: the round ended first"
                return self._end(edge, number, end, end, now)
            case "declined":
                return self._decline(edge, number, data, now)
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

    def tick(self, now: float, *, over: bool = False) -> list[LogLine]:
        """Return the sum of fast rounds, if it is due or all is `over`."""
        count = self._ends.total()
        if not count or (now < self._since + SUM_S and not over):
            return []
        said = ", ".join(f"{n} {end}" for end, n in self._ends.most_common())
        trained, seconds = self._trained_s, max(1, round(now - self._since))
        mean = f"; trained {sum(trained) / len(trained):.2g} s each" if trained else ""
        rounds = f"{count} round{'s' * (count > 1)} of {self._task}"
        self._ends, self._trained_s = Counter(), []
        return [LogLine(f"{rounds} in the last {seconds} s: {said}{mean}")]

    def _begin(
        self, edge: str, number: int, data: Mapping[str, object], now: float
    ) -> list[LogLine]:
        recipe, run = safe_text(data["recipe"], limit=100) or "a task", str(data["run"])[:8]
        task = f"{recipe} (run {run})"
        lines = self.tick(now, over=True) if task != self._task else []
        self._task = task
        logged = self._has_room(2, now)
        self._rounds[edge, number] = _Round(task, logged)
        while len(self._rounds) > _OPEN:
            self._rounds.popitem(last=False)
        return (
            [*lines, LogLine(f"{self._named(edge, number, task)}: training")] if logged else lines
        )

    def _end(self, edge: str, number: int, end: str, said: str, now: float) -> list[LogLine]:
        rnd = self._rounds.pop((edge, number), None)
        if rnd is None:
            return []
        if not rnd.logged:
            self._count(end, now)
            if rnd.seconds:
                self._trained_s.append(rnd.seconds)
            return []
        samples = f"{rnd.samples} sample{'s' * (rnd.samples != 1)}"
        trained = f"trained {rnd.seconds:.2g} s on {samples}, " if rnd.samples else ""
        return [LogLine(f"{self._named(edge, number, rnd.task)}: {trained}{said}")]

    def _decline(
        self, edge: str, number: int, data: Mapping[str, object], now: float
    ) -> list[LogLine]:
        """Warn once of each reason that lasts; log or count the others."""
        rnd = self._rounds.pop((edge, number), None)
        word = str(data["reason"])
        why = f"{word}: {safe_text(data['detail'], limit=500)}"
        line = f"declined round {number}: {why}"
        if word not in _PASSING and why != self._declined:
            self._declined = why
            return [LogLine(line, loud=True)]
        if rnd.logged if rnd is not None else self._has_room(1, now):
            return [LogLine(line)]
        self._count(f"declined ({word})", now)
        return []

    def _has_room(self, lines: int, now: float) -> bool:
        """Reserve the time of so many lines, unless it is still taken or a sum waits."""
        if now < self._room_at or self._ends:
            return False
        self._room_at = now + lines * LINE_S
        return True

    def _count(self, end: str, now: float) -> None:
        if not self._ends:
            self._since = now
        self._ends[end] += 1

    def _named(self, edge: str, number: int, task: str) -> str:
        return f"round {number} of {task} at {self._edges.get(edge, edge[:8])}"


def samples_line(reason: str, n: int) -> str:
    """Return the line for samples that were not learnt from."""
    return _SAMPLES.get(reason, "{n} samples were refused: {reason}").format(n=n, reason=reason)
