"""One evaluation of a model by the clients: whom it asks, who answered, what it came to."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from msgspec import structs

from fedagent_protocol.messages import EdgeMoments, OpinionMode, OpinionOpen, Opinions, Volunteers
from fedagent_task.moments import Moments

from .answers import (
    OTHER,
    EdgeAnswer,
    FloatArray,
    IntArray,
)
from .edges import EdgeSession
from .effects import BookOpinions, BookVolunteers
from .observation import joined

AnswerMessage = Opinions | Volunteers | EdgeMoments
"""What edges answer."""

REPEAT_S = 1.0
ENOUGH_S = 0.3
"""How much longer than the last volunteer that is wanted an evaluation stays open."""
MAX_REASONS = 32
MAX_TRAINED = 10_000
"""Ids of 64 letters that one message holds with room to spare."""
NO_ANSWER = "edge"
"""Why agents have no opinion whose edge did not answer in time."""
RESTART = "restart"
"""Why there is no opinion of a model that a coordinator died over."""
DIFFER = "differ"
"""Two edges report different opinions of an agent: one of them or the agent lies. Not missing."""
OTHER_METRIC = "metric"
UNSIGNED = "unsigned"
"""Why an answer does not count: it is not shown to be its agent's own."""


@dataclass(slots=True)
class EvaluationPart:
    """One edge's part in an evaluation; a refused one cannot answer and is not waited for."""

    edge: str
    index: int
    agents: int
    ask_at: float
    answer: EdgeAnswer | None = None
    refused: bool = False


@dataclass(slots=True, kw_only=True)
class ClientEvaluation:
    """One evaluation under way; the classes below say what clients are asked for.

    Attributes:
        round, slot: As in `BookEvaluation`.
        trained: Agents whose updates are in the model, where they are told so.
    """

    mode: ClassVar[OpinionMode]
    receipts: ClassVar[bool] = True
    """An edge that has answered gets a receipt, and is not asked again."""

    round: int
    slot: int
    digest: str
    began: float
    until: float  # when answers cease to count at the edges
    give_up_at: float  # when edges are not waited for any longer
    wanted: int = 0  # how many volunteers end it
    trained: frozenset[str] = frozenset()
    parts: dict[str, EvaluationPart] = field(default_factory=dict)  # by edge id

    def join(self, session: EdgeSession, now: float) -> None:
        """Ask an edge; one that was asked and has not answered is asked again at once."""
        part = self.parts.get(session.id)
        if part is None:
            part = EvaluationPart(session.id, session.index, session.agents, now)
            self.parts[session.id] = part
        part.agents = max(part.agents, session.agents)
        part.ask_at = now

    def message(self, edge: EdgeSession, now: float) -> OpinionOpen:
        """Return the question to an edge, with the time that is left.

        The edge's agents whose updates are in the model are named, as many as fit. The others
        count as if they had not trained, which leaves their own mean as it is.
        """
        # An edge that has just been started again has named nobody yet.
        trained = self.trained.intersection(edge.ids) if edge.ids else self.trained
        return OpinionOpen(
            round=self.round,
            model=self.digest,
            until_ms=max(0, int(1000 * (self.until - now))),
            mode=self.mode,
            slot=self.slot,
            epoch=edge.epoch,
            known=len(edge.ids),
            trained=tuple(sorted(trained)[:MAX_TRAINED]),
        )

    def take(self, edge: str, answer: EdgeAnswer, now: float) -> None:  # noqa: ARG002 - for volunteers
        """Take in an edge's answer."""
        part = self.parts[edge]
        part.answer, part.refused = answer, False

    def due_again(self, now: float) -> list[EvaluationPart]:
        """Return the edges to be asked again."""
        due = [part for part in self._to_ask() if part.ask_at <= now < self.until]
        for part in due:
            part.ask_at = now + REPEAT_S
        return due

    def is_over(self, live: Iterable[EdgeSession], now: float) -> bool:
        """Return whether no edge is waited for any longer."""
        return now >= self.give_up_at or not any(
            self._waited_for(edge) for edge in live if not edge.quiet
        )

    def next_due(self) -> float:
        """Return when an edge is asked again, or the evaluation may be over."""
        again = [part.ask_at for part in self._to_ask() if part.ask_at < self.until]
        return min([self._ends_at, *again])

    def seconds(self, now: float) -> float:
        """Return how long it has taken."""
        return round(max(0.0, now - self.began), 6)

    @property
    def _ends_at(self) -> float:
        return self.give_up_at

    def _to_ask(self) -> list[EvaluationPart]:
        return [p for p in self.parts.values() if not p.refused and p.answer is None]

    def _waited_for(self, edge: EdgeSession) -> bool:
        part = self.parts.get(edge.id)
        return part is None or (part.answer is None and not part.refused)

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
        told = joined([answer.unsigned for _, answer in answers], np.int64)
        # Two edges may tell of one agent, and one of the two what it has signed.
        unsigned = np.setdiff1d(told, _clients_of(answers)[0])
        reasons[UNSIGNED] += len(unsigned)
        return answers, asked - (len(told) - len(unsigned)), reasons


class OpinionEvaluation(ClientEvaluation):
    """Clients report their opinions (federated analytics)."""

    mode = OpinionMode.REPORT

    def record(self, now: float) -> BookOpinions:
        """Return the result; an agent that two edges saw counts at the first by index."""
        answers, asked, reasons = self._answers()
        metric = _metric([answer for _, answer in answers])
        client, edge = _clients_of(answers)
        ours = joined([np.full(len(a.client), a.metric == metric) for _, a in answers], np.bool_)
        reasons[OTHER_METRIC] += int((~ours).sum())
        score = joined([a.score for _, a in answers], np.float64)
        rows = np.flatnonzero(ours)
        # The first of equals: edges stand in the order of their indices.
        _, first, of = np.unique(client[rows], return_index=True, return_inverse=True)
        reasons[DIFFER] += int((score[rows] != score[rows[first]][of]).sum())
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
            samples=joined([a.samples for _, a in answers], np.int64)[rows],
            epsilon=joined([a.epsilon for _, a in answers], np.float64)[rows],
            reasons=_most_frequent(reasons),
            seconds=self.seconds(now),
        )


@dataclass(slots=True)
class VolunteerEvaluation(ClientEvaluation):
    """Clients agree with their neighbours, and volunteer (democratized analytics)."""

    mode = OpinionMode.PEERS
    receipts = False  # more volunteers may come from every edge

    _enough_at: float | None = field(default=None, init=False)

    def take(self, edge: str, answer: EdgeAnswer, now: float) -> None:
        """Take in an edge's answer; enough of them end the evaluation soon."""
        part = self.parts[edge]
        part.answer, part.refused = answer, False
        if self._enough_at is None and self._enough():
            self._enough_at = now + ENOUGH_S

    def is_over(self, live: Iterable[EdgeSession], now: float) -> bool:
        """Return whether enough volunteered, or the time is over."""
        enough = self._enough_at is not None and now >= self._enough_at
        return enough or now >= self.until or not any(True for _ in live)

    def record(self, now: float) -> BookVolunteers:
        """Return the result; an agent that two edges saw counts at the first by index."""
        answers, asked, reasons = self._answers()
        client, edge = _clients_of(answers)
        _, first = np.unique(client, return_index=True)
        return BookVolunteers(
            round=self.round,
            slot=self.slot,
            digest=self.digest,
            asked=asked - (len(client) - len(first)),
            client=client[first],
            edge=edge[first],
            reasons=_most_frequent(reasons),
            seconds=self.seconds(now),
        )

    @property
    def _ends_at(self) -> float:
        return self.until if self._enough_at is None else min(self.until, self._enough_at)

    def _to_ask(self) -> list[EvaluationPart]:
        return [part for part in self.parts.values() if not part.refused]

    def _enough(self) -> bool:
        answers = [part.answer for part in self.parts.values() if part.answer is not None]
        volunteered = len({client for answer in answers for client in answer.client.tolist()})
        if volunteered >= self.wanted:
            return True
        # An agent that two edges see was asked by both, and is one.
        named = set[str]().union(*(answer.named for answer in answers))
        everybody = min(sum(answer.asked for answer in answers), len(named))
        return len(answers) == len(self.parts) and 0 < everybody <= volunteered


class StatisticsCollection(ClientEvaluation):
    """Clients add up their samples, so that features can be scaled."""

    mode = OpinionMode.MOMENTS

    def total(self, live: Iterable[EdgeSession]) -> tuple[Moments | None, int, dict[str, int]]:
        """Return what all samples add up to, of how many agents, and why others have none.

        An edge that fell silent does not count: its agents may have moved to another one.
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
        return total, agents, _most_frequent(reasons)


def without_answers(round_: int, slot: int, digest: str, clients: int) -> BookOpinions:
    """Return the evaluation of a model that a coordinator died over."""
    nobody = OpinionEvaluation(
        round=round_, slot=slot, digest=digest, began=0.0, until=0.0, give_up_at=0.0
    ).record(0.0)
    return structs.replace(nobody, asked=clients, reasons={RESTART: clients} if clients else {})


def by_client(client: IntArray, score: FloatArray, clients: int) -> FloatArray:
    """Return float64[clients], NaN where none; later clients than these are left out."""
    opinions = np.full(clients, np.nan)
    known = client < clients
    opinions[client[known]] = score[known]
    return opinions


def _metric(answers: Iterable[EdgeAnswer]) -> str:
    """Return what most opinions are, so that no edge decides alone; of equals the first."""
    named: Counter[str] = Counter()
    for answer in answers:
        named[answer.metric] += len(answer.client)
    return max(+named, key=named.__getitem__, default="")


def _most_frequent(reasons: Counter[str]) -> dict[str, int]:
    ranked = sorted((+reasons).items(), key=lambda item: (-item[1], item[0]))
    kept = dict(ranked[: MAX_REASONS - 1])
    rest = sum(count for _, count in ranked[MAX_REASONS - 1 :])
    if rest:
        kept[OTHER] = kept.get(OTHER, 0) + rest
    return kept


def _clients_of(answers: list[tuple[int, EdgeAnswer]]) -> tuple[IntArray, IntArray]:
    client = joined([answer.client for _, answer in answers], np.int64)
    edge = joined([np.full(len(a.client), index) for index, a in answers], np.int64)
    return client, edge
