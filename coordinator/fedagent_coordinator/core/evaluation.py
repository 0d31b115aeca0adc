"""One evaluation of a model by the clients: whom it asks, what they answer, what it came to.

An opinion, and that a client volunteers, is the client's own word: an edge hands on the claim that
a client signed for the site, the run, the round, the task and the model that it was asked of. Asked
only in a site with certificates: elsewhere anybody may speak (docs/opinions.md).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import structs

from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_protocol.columns import claims_in, column
from fedagent_protocol.errors import MalformedError, safe_text
from fedagent_protocol.messages import EdgeMoments, OpinionMode, OpinionOpen, Opinions, Volunteers
from fedagent_protocol.signed import Asked, is_claim
from fedagent_task.moments import Moments, MomentsError
from fedagent_task.recipe.spec import Recipe

from .edges import EdgeSession
from .effects import BookOpinions, BookVolunteers
from .observation import joined

AnswerMessage = Opinions | Volunteers | EdgeMoments
"""What edges answer."""
Index = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]]
"""Gives the run-wide indices of an edge's sessions, -1 of those that have none."""

MODES: Mapping[type[AnswerMessage], OpinionMode] = {
    Opinions: OpinionMode.REPORT,
    Volunteers: OpinionMode.PEERS,
    EdgeMoments: OpinionMode.MOMENTS,
}
REPEAT_S = 1.0
ENOUGH_S = 0.3
"""How much longer than the last volunteer that is wanted an evaluation stays open."""
MAX_REASON = 32
MAX_REASONS = 32
MAX_TRAINED = 10_000
"""Ids of 64 letters that one message holds with room to spare."""
OTHER = "other"
NO_ANSWER = "edge"
"""Why agents have no opinion whose edge did not answer in time."""
RESTART = "restart"
"""Why there is no opinion of a model that a coordinator died over."""
DIFFER = "differ"
"""Two edges report different opinions of an agent: one of them or the agent lies. Not missing."""
OTHER_METRIC = "metric"
UNSIGNED = "unsigned"
"""Why an answer does not count: it is not shown to be its agent's own."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeAnswer:
    """What one edge answered, by run-wide clients; volunteers have no columns but `client`."""

    client: IntArray  # int64[P], like the columns up to `epsilon`
    asked: int  # agents that were asked there, at least P
    named: tuple[str, ...] = ()  # agents that the edge has ever named
    score: FloatArray = field(default_factory=lambda: np.zeros(0))
    samples: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    epsilon: FloatArray = field(default_factory=lambda: np.zeros(0))
    metric: str = ""
    reasons: Mapping[str, int] = field(default_factory=dict)
    moments: Moments | None = None  # what the samples of `agents` agents add up to
    agents: int = 0
    unsigned: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Clients whose answer is not shown to be their own, and does not count."""


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
    """One evaluation under way.

    An edge that reports opinions or statistics gets a receipt, and is not asked again; more
    volunteers may come from every edge.
    """

    mode: OpinionMode
    round: int
    slot: int
    digest: str
    began: float
    until: float  # when answers cease to count at the edges
    give_up_at: float  # when edges are not waited for any longer
    wanted: int = 0  # how many volunteers end it
    trained: frozenset[str] = frozenset()
    """Agents whose updates are in the model, where they are told so."""
    parts: dict[str, EvaluationPart] = field(default_factory=dict)  # by edge id
    _judged: dict[tuple[str, int], tuple[bytes, bool]] = field(default_factory=dict)
    """What an edge says of a client is checked once: one that repeats itself costs nothing."""
    _enough_at: float | None = None

    # --------------------------------------------------------------- whom it asks

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

    @property
    def asks_for_volunteers(self) -> bool:
        """Whether clients agree with their neighbours, and volunteer (democratized analytics)."""
        return self.mode is OpinionMode.PEERS

    def due_again(self, now: float) -> list[EvaluationPart]:
        """Return the edges to be asked again."""
        due = [part for part in self._to_ask() if part.ask_at <= now < self.until]
        for part in due:
            part.ask_at = now + REPEAT_S
        return due

    def is_over(self, live: Iterable[EdgeSession], now: float) -> bool:
        """Return whether no edge is waited for any longer, or enough volunteered."""
        if now >= self._ends_at:
            return True
        if self.asks_for_volunteers:
            return not any(True for _ in live)
        return not any(self._waited_for(edge) for edge in live if not edge.quiet)

    def next_due(self) -> float:
        """Return when an edge is asked again, or the evaluation may be over."""
        again = [part.ask_at for part in self._to_ask() if part.ask_at < self.until]
        return min([self._ends_at, *again])

    @property
    def _ends_at(self) -> float:
        if not self.asks_for_volunteers:
            return self.give_up_at
        return self.until if self._enough_at is None else min(self.until, self._enough_at)

    def _to_ask(self) -> list[EvaluationPart]:
        return [
            part
            for part in self.parts.values()
            if not part.refused and (part.answer is None or self.asks_for_volunteers)
        ]

    def _waited_for(self, edge: EdgeSession) -> bool:
        part = self.parts.get(edge.id)
        return part is None or (part.answer is None and not part.refused)

    # ---------------------------------------------------------- what they answer

    def read(
        self,
        message: AnswerMessage,
        session: EdgeSession,
        index: Index,
        asked: Asked | None,
        recipe: Recipe,
    ) -> EdgeAnswer:
        """Return what a message says whose ids the session knows; without `asked` all count.

        Raises:
            MalformedError: It says what cannot be.
        """
        if not isinstance(message, Volunteers) and message.model != self.digest:
            raise MalformedError("an answer about another model")
        match message:
            case Opinions():
                return self._opinions(message, session, index, asked)
            case Volunteers():
                return self._volunteers(message, session, index, asked)
            case EdgeMoments():
                return _moments(message, recipe)

    def take(self, edge: str, answer: EdgeAnswer, now: float) -> None:
        """Take in an edge's answer; enough volunteers end the evaluation soon."""
        part = self.parts[edge]
        part.answer, part.refused = answer, False
        if self.asks_for_volunteers and self._enough_at is None and self._enough():
            self._enough_at = now + ENOUGH_S

    def _opinions(
        self, message: Opinions, session: EdgeSession, index: Index, asked: Asked | None
    ) -> EdgeAnswer:
        rows, client = _clients(message, session, index)
        score = column(message.score, np.float32, "score").astype(np.float64)
        samples = column(message.samples, np.int64, "samples")
        epsilon = column(message.epsilon, np.float32, "epsilon").astype(np.float64)
        if not len(epsilon):
            epsilon = np.zeros(len(client))
        if {len(score), len(samples), len(epsilon)} != {len(client)}:
            raise MalformedError("columns of opinions differ in length")
        # Written so that NaN is out of range too.
        if not ((score >= 0) & (score <= 1)).all():
            raise MalformedError("an opinion is not in [0, 1]")
        if not (np.isfinite(epsilon) & (epsilon >= 0)).all() or not (samples > 0).all():
            raise MalformedError("an epsilon or a number of samples is out of range")

        def said(asked: Asked, agent: str, row: int) -> bytes:
            told = float(score[row]), int(samples[row]), float(epsilon[row])
            return asked.scored(agent, message.metric, *told)

        known = self._of_their_word(message, session, rows, client, said, asked)
        return EdgeAnswer(
            client=client[known],
            asked=max(message.asked, len(client)),
            score=score[known] + 0.0,  # no -0.0: the books do not keep its sign
            samples=samples[known],
            epsilon=epsilon[known] + 0.0,
            metric=safe_text(message.metric, limit=100),
            reasons=_reasons(message.reasons),
            unsigned=client[~known & (client >= 0)],
        )

    def _volunteers(
        self, message: Volunteers, session: EdgeSession, index: Index, asked: Asked | None
    ) -> EdgeAnswer:
        rows, client = _clients(message, session, index)

        def said(asked: Asked, agent: str, _row: int) -> bytes:
            return asked.volunteer(agent, session.id)

        known = self._of_their_word(message, session, rows, client, said, asked)
        unsigned = client[~known & (client >= 0)]
        asked_there = max(message.asked, len(client))
        return EdgeAnswer(client[known], asked_there, tuple(session.ids), unsigned=unsigned)

    def _of_their_word(
        self,
        message: Opinions | Volunteers,
        session: EdgeSession,
        rows: npt.NDArray[np.int32],
        client: IntArray,
        said: Callable[[Asked, str, int], bytes],
        asked: Asked | None,
    ) -> BoolArray:
        """Return bool[rows], which have an index and are what their client has signed."""
        claims = claims_in(message.claim, len(client))
        if asked is None:
            return client >= 0
        theirs = np.zeros(len(client), dtype=np.bool_)
        for row in np.flatnonzero(client >= 0).tolist():
            place, agent = (session.id, int(client[row])), session.ids[rows[row]]
            words = said(asked, agent, row)
            judged = self._judged.get(place)
            if judged is None or judged[0] != words:
                claim = claims[row].tobytes() if len(claims) else b""
                judged = self._judged[place] = words, is_claim(claim, agent, words)
            theirs[row] = judged[1]
        return theirs

    def _enough(self) -> bool:
        answers = [part.answer for part in self.parts.values() if part.answer is not None]
        volunteered = len({client for answer in answers for client in answer.client.tolist()})
        if volunteered >= self.wanted:
            return True
        # An agent that two edges see was asked by both, and is one.
        named = set[str]().union(*(answer.named for answer in answers))
        everybody = min(sum(answer.asked for answer in answers), len(named))
        return len(answers) == len(self.parts) and 0 < everybody <= volunteered

    # ---------------------------------------------------------- what it came to

    def record(self, now: float) -> BookOpinions | BookVolunteers:
        """Return the result; an agent that two edges saw counts at the first by index."""
        answers, asked, reasons = self._answers()
        client = joined([answer.client for _, answer in answers], np.int64)
        edge = joined([np.full(len(a.client), index) for index, a in answers], np.int64)
        told = joined([answer.unsigned for _, answer in answers], np.int64)
        # Two edges may tell of one agent, and one of the two what it has signed.
        unsigned = np.setdiff1d(told, client)
        reasons[UNSIGNED] += len(unsigned)
        asked -= len(told) - len(unsigned)
        seconds = round(max(0.0, now - self.began), 6)
        if self.asks_for_volunteers:
            _, first = np.unique(client, return_index=True)
            return BookVolunteers(
                round=self.round,
                slot=self.slot,
                digest=self.digest,
                asked=asked - (len(client) - len(first)),
                client=client[first],
                edge=edge[first],
                reasons=_most_frequent(reasons),
                seconds=seconds,
            )
        metric = _metric([answer for _, answer in answers])
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
            seconds=seconds,
        )

    def total(self, live: Iterable[EdgeSession]) -> tuple[Moments | None, int]:
        """Return what all samples add up to, and of how many agents.

        An edge that fell silent does not count: its agents may have moved to another one.
        """
        total, agents = None, 0
        for edge in live:
            part = self.parts.get(edge.id)
            if part is not None and part.answer is not None and part.answer.moments is not None:
                agents += part.answer.agents
                total = part.answer.moments if total is None else total + part.answer.moments
        return total, agents

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


def without_answers(round_: int, slot: int, digest: str, clients: int) -> BookOpinions:
    """Return the evaluation of a model that a coordinator died over."""
    nobody = ClientEvaluation(
        mode=OpinionMode.REPORT,
        round=round_,
        slot=slot,
        digest=digest,
        began=0.0,
        until=0.0,
        give_up_at=0.0,
    ).record(0.0)
    assert isinstance(nobody, BookOpinions)
    return structs.replace(nobody, asked=clients, reasons={RESTART: clients} if clients else {})


def by_client(client: IntArray, score: FloatArray, clients: int) -> FloatArray:
    """Return float64[clients], NaN where none; later clients than these are left out."""
    opinions = np.full(clients, np.nan)
    known = client < clients
    opinions[client[known]] = score[known]
    return opinions


def _moments(message: EdgeMoments, recipe: Recipe) -> EdgeAnswer:
    if message.agents > message.asked:
        raise MalformedError("more agents answered than were asked")
    found, agents = None, message.agents if message.moments else 0
    if message.moments:
        most = agents * recipe.limits.max_samples
        try:
            found = Moments.decode(message.moments, features=recipe.model.features, most=most)
        except MomentsError as error:
            raise MalformedError(f"statistics that cannot be: {error}") from error
    none: IntArray = np.zeros(0, dtype=np.int64)
    return EdgeAnswer(none, message.asked, moments=found, agents=agents)


def _reasons(named: Mapping[str, int]) -> dict[str, int]:
    if any(count < 0 for count in named.values()):
        raise MalformedError("less than no agents have a reason")
    reasons: Counter[str] = Counter()
    for why, count in named.items():
        reasons[safe_text(why, limit=MAX_REASON) or OTHER] += count
    return reasons


def _clients(
    message: Opinions | Volunteers, session: EdgeSession, index: Index
) -> tuple[npt.NDArray[np.int32], IntArray]:
    """Return the session of each row, and int64[rows], -1 of agents that have no index."""
    rows = column(message.session, np.int32, "session")
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(session.ids)):
        raise MalformedError("a row names an unknown session")
    if len(np.unique(rows)) != len(rows):
        raise MalformedError("a session has two rows")
    return rows, index(rows).astype(np.int64)


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
