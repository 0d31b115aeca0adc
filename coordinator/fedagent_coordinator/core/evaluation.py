"""One call for opinions, or for volunteers: who was asked, who answered, what it came to.

Pure: messages and times go in, records for the books come out (docs/opinions.md).
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.columns import column
from fedagent_protocol.errors import MalformedError, safe_text
from fedagent_protocol.messages import EdgeMoments, OpinionMode, Opinions, Volunteers
from fedagent_task.moments import Moments, MomentsError

from .edges import EdgeSession
from .effects import BookOpinions, BookVolunteers

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

RESEND_S = 1.0
ENOUGH_S = 0.3
"""How much longer than the last volunteer that is wanted a call stays open."""
MAX_REASONS = 32
NO_ANSWER = "edge"
"""Why agents have no opinion whose edge said nothing in time."""
RESTART = "restart"
"""Why nobody has an opinion of a model that a coordinator died over."""
DIFFER = "differ"
"""An agent seems to have told two edges different things: one of the edges lies. Not missing."""
OTHER_METRIC = "metric"
OTHER = "other"


class RefusedAnswerError(MalformedError):
    """Raised when an edge's answer to a call is impossible; `word` is what is counted."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(detail)
        self.word = word


@dataclass(frozen=True, slots=True, eq=False)
class EdgeAnswer:
    """What one edge said, by run-wide clients; volunteers have no columns but `client`.

    Attributes:
        client: int64[P].
        score, epsilon: float64[P].
        samples: int64[P].
        asked: Agents that were called there, at least P.
        named: int64[Q], clients that the edge has ever named, with those of `client`.
    """

    client: IntArray
    asked: int
    named: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    score: FloatArray = field(default_factory=lambda: np.zeros(0))
    samples: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    epsilon: FloatArray = field(default_factory=lambda: np.zeros(0))
    metric: str = ""
    reasons: Mapping[str, int] = field(default_factory=dict)
    moments: Moments | None = None
    agents: int = 0


def moments_in(
    message: EdgeMoments, call: "EvaluationCall", *, features: int, max_samples: int
) -> EdgeAnswer:
    """Return what the samples at an edge add up to.

    Raises:
        RefusedAnswerError: No samples of as many agents can be like that.
    """
    if message.model != call.digest:
        raise RefusedAnswerError("model", "statistics for another model")
    if any(count < 0 for count in message.reasons.values()) or message.agents > message.asked:
        raise RefusedAnswerError("range", "more agents answered than were asked")
    found, agents = None, message.agents if message.moments else 0
    if message.moments:
        try:
            found = Moments.decode(message.moments, features=features, most=agents * max_samples)
        except MomentsError as error:
            raise RefusedAnswerError(f"moments_{error}", "statistics that cannot be") from error
    reasons = {safe_text(why, limit=32) or OTHER: n for why, n in message.reasons.items()}
    none: IntArray = np.zeros(0, dtype=np.int64)
    return EdgeAnswer(none, message.asked, reasons=reasons, moments=found, agents=agents)


def opinions_in(message: Opinions, session: EdgeSession, model: str) -> EdgeAnswer:
    """Return the opinions in a message whose ids the session knows.

    Raises:
        RefusedAnswerError: It is of another model, columns differ in length, a session is
            unknown or has two rows, or a number is out of range.
    """
    if message.model != model:
        raise RefusedAnswerError("model", "an opinion of another model")
    client = _clients(message, session)
    score = column(message.score, np.float32, "score").astype(np.float64)
    samples = column(message.samples, np.int64, "samples")
    epsilon = column(message.epsilon, np.float32, "epsilon").astype(np.float64)
    if not len(epsilon):
        epsilon = np.zeros(len(client))
    if {len(score), len(samples), len(epsilon)} != {len(client)}:
        raise RefusedAnswerError("length", "columns of opinions differ in length")
    # Written so that NaN is out of range too.
    if not ((score >= 0) & (score <= 1)).all():
        raise RefusedAnswerError("range", "an opinion is not in [0, 1]")
    if not (np.isfinite(epsilon) & (epsilon >= 0)).all() or not (samples > 0).all():
        raise RefusedAnswerError("range", "an epsilon or a number of samples is out of range")
    if any(count < 0 for count in message.reasons.values()):
        raise RefusedAnswerError("range", "less than no agents have a reason")
    reasons: Counter[str] = Counter()
    for why, count in message.reasons.items():
        reasons[safe_text(why, limit=32) or OTHER] += count
    return EdgeAnswer(
        client=client,
        asked=max(message.asked, len(client)),
        score=score + 0.0,  # no -0.0: the books do not keep its sign
        samples=samples,
        epsilon=epsilon + 0.0,
        metric=safe_text(message.metric, limit=100),
        reasons=reasons,
    )


def volunteers_in(message: Volunteers, session: EdgeSession) -> EdgeAnswer:
    """Return the volunteers in a message whose ids the session knows.

    Raises:
        RefusedAnswerError: A session is unknown or has two rows.
    """
    client = _clients(message, session)
    named = session.client.astype(np.int64)
    return EdgeAnswer(client=client, asked=max(message.asked, len(client)), named=named)


def _clients(message: Opinions | Volunteers, session: EdgeSession) -> IntArray:
    """Return int64[P], the run-wide client of each row."""
    rows = column(message.session, np.int32, "session")
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(session.ids)):
        raise RefusedAnswerError("session", "a row names an unknown session")
    if len(np.unique(rows)) != len(rows):
        raise RefusedAnswerError("twice", "a session has two rows")
    return session.client[rows].astype(np.int64)


@dataclass(slots=True)
class Part:
    """One edge's part in a call.

    Attributes:
        agents: How many it says it sees.
        say_at: When it is called again.
        answer: What it said; for volunteers the newest.
        refused: It said what cannot be: it is not waited for.
    """

    edge: str
    index: int
    agents: int
    say_at: float
    answer: EdgeAnswer | None = None
    refused: bool = False


@dataclass(slots=True)
class EvaluationCall:
    """A call under way.

    Attributes:
        round: Of the model that is evaluated; 0 for the one the run begins with.
        slot: Models evaluated so far in the run, with this one.
        began: When the edges were first called.
        until: When answers stop to count at the edges.
        give_up_at: When edges are not waited for any longer.
        best: How many volunteers are wanted.
        opening: It comes before a round is decided, not after one.
        trained: Agents whose updates are in the model; mode ``peers`` only.
        parts: By edge id.
    """

    round: int
    slot: int
    mode: OpinionMode
    digest: str
    began: float
    until: float
    give_up_at: float
    best: int
    opening: bool
    trained: frozenset[str] = frozenset()
    parts: dict[str, Part] = field(default_factory=dict)
    _enough_at: float | None = None

    def join(self, session: EdgeSession, now: float) -> None:
        """Call an edge; one that is called already and has not answered is called at once."""
        part = self.parts.get(session.id)
        if part is None:
            part = Part(session.id, session.index, session.agents, now)
            self.parts[session.id] = part
        part.agents = max(part.agents, session.agents)
        part.say_at = now

    def take(self, edge: str, answer: EdgeAnswer, now: float) -> None:
        """Take in what an edge said."""
        part = self.parts[edge]
        part.answer, part.refused = answer, False
        if self.mode is OpinionMode.PEERS and self._enough_at is None and self._enough():
            self._enough_at = now + ENOUGH_S

    def due_again(self, now: float) -> list[Part]:
        """Return the edges to be called again; volunteers may still come from all of them."""
        due = [part for part in self._to_call() if now >= part.say_at and now < self.until]
        for part in due:
            part.say_at = now + RESEND_S
        return due

    def over(self, live: Iterable[EdgeSession], now: float) -> bool:
        """Return whether nobody is waited for any longer."""
        if self.mode is OpinionMode.PEERS:
            enough = self._enough_at is not None and now >= self._enough_at
            return enough or now >= self.until or not any(True for _ in live)
        return now >= self.give_up_at or not any(
            self._waited_for(edge) for edge in live if not edge.quiet
        )

    def next_due(self) -> float:
        """Return when an edge is called again, or the call may be over."""
        end = self.until if self.mode is OpinionMode.PEERS else self.give_up_at
        if self._enough_at is not None:
            end = min(end, self._enough_at)
        again = [part.say_at for part in self._to_call() if part.say_at < self.until]
        return min([end, *again])

    def booked(self, now: float) -> BookOpinions | BookVolunteers:
        """Return what it came to; an agent that two edges saw counts at the first by index."""
        seconds = round(max(0.0, now - self.began), 6)
        if self.mode is OpinionMode.PEERS:
            return self._volunteers(seconds)
        return self._opinions(seconds)

    def added_up(self, live: Iterable[EdgeSession]) -> tuple[Moments | None, int, dict[str, int]]:
        """Return what all samples add up to, of how many agents, and why others told nothing.

        An edge that fell silent does not count: its agents may have told another one.
        """
        here = {edge.id for edge in live}
        total, agents, reasons = None, 0, Counter[str]()
        for part in self.parts.values():
            if part.answer is None or part.edge not in here:
                reasons[NO_ANSWER] += part.agents
                continue
            reasons.update(part.answer.reasons)
            if part.answer.moments is not None:
                agents += part.answer.agents
                total = part.answer.moments if total is None else total + part.answer.moments
        return total, agents, _most(reasons)

    def _to_call(self) -> list[Part]:
        peers = self.mode is OpinionMode.PEERS
        return [p for p in self.parts.values() if not p.refused and (peers or p.answer is None)]

    def _waited_for(self, edge: EdgeSession) -> bool:
        part = self.parts.get(edge.id)
        return part is None or (part.answer is None and not part.refused)

    def _enough(self) -> bool:
        """Return whether as many volunteered as are wanted, or as there are."""
        answers = [part.answer for part in self.parts.values() if part.answer is not None]
        known = len({client for answer in answers for client in answer.client.tolist()})
        if known >= self.best:
            return True
        # Who is seen by two edges was called by both, and is one.
        named = _joined([answer.named for answer in answers], np.int64)
        everybody = min(sum(answer.asked for answer in answers), len(np.unique(named)))
        return len(answers) == len(self.parts) and 0 < everybody <= known

    def _answers(self) -> tuple[list[tuple[int, EdgeAnswer]], int, Counter[str]]:
        """Return edge indices with their answers, how many were asked, and why some did not."""
        answers: list[tuple[int, EdgeAnswer]] = []
        asked, reasons = 0, Counter[str]()
        for part in sorted(self.parts.values(), key=lambda part: part.index):
            if part.answer is None:
                asked += part.agents
                reasons[NO_ANSWER] += part.agents
            else:
                answers.append((part.index, part.answer))
                asked += part.answer.asked
                reasons.update(part.answer.reasons)
        return answers, asked, reasons

    def _opinions(self, seconds: float) -> BookOpinions:
        answers, asked, reasons = self._answers()
        metric = _metric([answer for _, answer in answers])
        client = _joined([answer.client for _, answer in answers], np.int64)
        edge = _joined([np.full(len(a.client), index) for index, a in answers], np.int64)
        ours = _joined([np.full(len(a.client), a.metric == metric) for _, a in answers], np.bool_)
        reasons[OTHER_METRIC] += int((~ours).sum())
        score = _joined([a.score for _, a in answers], np.float64)
        rows = np.flatnonzero(ours)
        # The first of equals: edges stand in the order of their indices.
        _, first, of = np.unique(client[rows], return_index=True, return_inverse=True)
        differ = int((score[rows] != score[rows[first]][of]).sum())
        reasons[DIFFER] += differ
        asked -= len(rows) - len(first)
        rows = rows[first]
        return BookOpinions(
            round=self.round,
            slot=self.slot,
            digest=self.digest,
            metric=metric,
            asked=asked,
            client=client[rows],
            edge=edge[rows],
            score=score[rows],
            samples=_joined([a.samples for _, a in answers], np.int64)[rows],
            epsilon=_joined([a.epsilon for _, a in answers], np.float64)[rows],
            reasons=_most(reasons),
            seconds=seconds,
        )

    def _volunteers(self, seconds: float) -> BookVolunteers:
        answers, asked, reasons = self._answers()
        client = _joined([answer.client for _, answer in answers], np.int64)
        edge = _joined([np.full(len(a.client), index) for index, a in answers], np.int64)
        _, first = np.unique(client, return_index=True)
        return BookVolunteers(
            round=self.round,
            slot=self.slot,
            digest=self.digest,
            asked=asked - (len(client) - len(first)),
            client=client[first],
            edge=edge[first],
            reasons=_most(reasons),
            seconds=seconds,
        )


def nobody(round_: int, slot: int, digest: str, clients: int) -> BookOpinions:
    """Return the evaluation of a model that a coordinator died over."""
    none: IntArray = np.zeros(0, dtype=np.int64)
    return BookOpinions(
        round=round_,
        slot=slot,
        digest=digest,
        metric="",
        asked=clients,
        client=none,
        edge=none,
        score=np.zeros(0),
        samples=none,
        epsilon=np.zeros(0),
        reasons={RESTART: clients} if clients else {},
        seconds=0.0,
    )


def spread(client: IntArray, score: FloatArray, clients: int) -> FloatArray:
    """Return float64[clients], NaN where none; later clients than these are left out."""
    opinions = np.full(clients, np.nan)
    known = client < clients
    opinions[client[known]] = score[known]
    return opinions


def _metric(answers: Iterable[EdgeAnswer]) -> str:
    """Return what most opinions are, so that no edge's word alone decides; of equals the first."""
    said: Counter[str] = Counter()
    for answer in answers:
        said[answer.metric] += len(answer.client)
    return max(+said, key=said.__getitem__, default="")


def _most(reasons: Counter[str]) -> dict[str, int]:
    """Return the most frequent reasons; the rest as one."""
    ranked = sorted((+reasons).items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ranked[: MAX_REASONS - 1])
    rest = sum(count for _, count in ranked[MAX_REASONS - 1 :])
    if rest:
        kept[OTHER] = kept.get(OTHER, 0) + rest
    return kept


def _joined(parts: list[npt.NDArray[np.generic]], scalar: type[np.generic]) -> npt.NDArray:  # type: ignore[type-arg] # the scalar decides
    return np.concatenate(parts).astype(scalar) if parts else np.zeros(0, dtype=scalar)
