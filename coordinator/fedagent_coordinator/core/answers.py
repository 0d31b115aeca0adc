"""When clients evaluate a model, what they answer, and what it comes to.

Between rounds clients give their opinions of the global model, or volunteer to train it; before
the first one they may add up the statistics of their samples (docs/opinions.md).

An opinion, and that a client volunteers, is the client's own word: an edge hands on the claim that
a client signed for the site, the run, the round, the task and the model that it was asked of. Asked
only in a site with certificates: elsewhere anybody may speak.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from msgspec import structs

from fedagent_coordinator.policies.base import (
    CLAIM_GAP,
    LOSSES,
    NOT_FEATURES,
    OPINIONS,
    VOLUNTEERS,
)
from fedagent_protocol.columns import claims_in, column
from fedagent_protocol.errors import ProtocolError, safe_text
from fedagent_protocol.messages import EdgeMoments, OpinionMode, Opinions, Volunteers
from fedagent_protocol.signed import Asked
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import Recipe

from .edges import EdgeSession
from .effects import BookEvaluation
from .observation import joined, signed_by

AnswerMessage = Opinions | Volunteers | EdgeMoments
"""What edges answer."""
MODES: Mapping[type[AnswerMessage], OpinionMode] = {
    Opinions: OpinionMode.REPORT,
    Volunteers: OpinionMode.PEERS,
    EdgeMoments: OpinionMode.MOMENTS,
}
_PROVIDES: Mapping[OpinionMode | None, frozenset[str]] = {
    OpinionMode.REPORT: frozenset({OPINIONS}),
    OpinionMode.PEERS: frozenset({VOLUNTEERS}),
}
"""Needs of policies that are no features, and are met by what clients are asked for."""
MAX_REASONS = 32
"""That are kept of a call, the most frequent; each as long."""
NO_ANSWER = "edge"
"""Why agents have no opinion whose edge did not answer in time, or what cannot be."""
RESTART = "restart"
"""Why there is no opinion of a model that a coordinator died over."""
OTHER_METRIC = "metric"
UNSIGNED = "unsigned"
"""Why an answer does not count: it is not shown to be its agent's own."""
_ROW = np.dtype([("client", "i8"), ("score", "f8"), ("samples", "i8"), ("epsilon", "f8")])
"""What counts of a client's answer; of a volunteer only who it is."""
Rows = npt.NDArray[np.void]
Clients = Callable[[npt.NDArray[np.int32]], npt.NDArray[np.int32]]
_NONE: Rows = np.zeros(0, dtype=_ROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What clients are asked: in a mode, of the model of a round; times are of the engine."""

    mode: OpinionMode
    round: int
    slot: int
    digest: str
    began: float = 0.0
    until: float = 0.0  # when answers cease to count at the edges
    give_up_at: float = 0.0  # when edges are not waited for any longer
    wanted: int = 0  # how many volunteers end it
    trained: frozenset[str] = frozenset()  # whose updates are in the model, where they are told so
    asked: Asked | None = None  # what answers are signed for; None: they need not be

    @property
    def for_volunteers(self) -> bool:
        """Whether clients agree with their neighbours, and volunteer (democratized analytics)."""
        return self.mode is OpinionMode.PEERS


@dataclass(frozen=True, slots=True, eq=False)
class EdgeAnswer:
    """What one edge answered, by run-wide clients."""

    asked: int  # agents that were asked there, at least as many as have a row
    rows: Rows = field(default_factory=_NONE.copy)
    unsigned: frozenset[int] = frozenset()  # whose answer is not shown to be their own
    named: tuple[str, ...] = ()  # agents that the edge has ever named
    metric: str = ""
    reasons: Mapping[str, int] = field(default_factory=dict)
    moments: Moments | None = None  # what the samples of `agents` agents add up to
    agents: int = 0

    @property
    def clients(self) -> list[int]:
        """Whose rows it has."""
        found: list[int] = self.rows["client"].tolist()
        return found


def no_answer(agents: int) -> EdgeAnswer:
    """Return what an edge with so many agents comes to that said nothing of use."""
    return EdgeAnswer(agents, reasons={NO_ANSWER: agents})


def read_answer(
    message: AnswerMessage, edge: EdgeSession, call: Call, *, recipe: Recipe, client: Clients
) -> EdgeAnswer:
    """Return what an edge says that knows all it names.

    `client` gives the run-wide indices of its sessions, int32[P], -1 of those that have none.

    Raises:
        ProtocolError: It says what cannot be.
    """
    if not isinstance(message, Volunteers) and message.model != call.digest:
        raise ProtocolError("an answer about another model")
    if isinstance(message, EdgeMoments):
        return _moments(message, recipe)
    rows = column(message.session, np.int32, "session")
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(edge.ids)):
        raise ProtocolError("a row names an unknown session")
    if len(np.unique(rows)) != len(rows):
        raise ProtocolError("a session has two rows")
    told, reasons, metric = np.zeros(len(rows), dtype=_ROW), Counter[str](), ""
    told["client"] = client(rows)
    if isinstance(message, Opinions):
        _fill(told, message)
        metric = safe_text(message.metric, limit=100)
        # In an edge's words, which the books keep and people read.
        for words, agents in message.reasons.items():
            reasons[safe_text(words, limit=MAX_REASONS)] += agents
    known, signed = told["client"] >= 0, np.ones(len(told), dtype=np.bool_)
    if call.asked is not None:
        claims = claims_in(message.claim, len(told))
        for at in np.flatnonzero(known).tolist():
            agent, (_, *figures) = edge.ids[rows[at]], told[at].item()
            if isinstance(message, Volunteers):
                said = call.asked.volunteer(agent, edge.id)
            else:
                said = call.asked.scored(agent, message.metric, *figures)
            claim = claims[at].tobytes() if len(claims) else b""
            signed[at] = signed_by(agent, claim, said)
    return EdgeAnswer(
        max(message.asked, len(rows)),
        told[known & signed],
        frozenset(told["client"][known & ~signed].tolist()),
        named=tuple(edge.ids),
        metric=metric,
        reasons=reasons,
    )


def enough(call: Call, answers: Sequence[EdgeAnswer], edges: int) -> bool:
    """Return whether as many volunteer at so many edges as are wanted, or as there are."""
    volunteered = len({client for answer in answers for client in answer.clients})
    if volunteered >= call.wanted:
        return True
    # An agent that two edges see was asked by both, and is one.
    named = set[str]().union(*(answer.named for answer in answers))
    everybody = min(sum(answer.asked for answer in answers), len(named))
    return len(answers) == edges and 0 < everybody <= volunteered


def result(call: Call, answers: Sequence[tuple[int, EdgeAnswer]], now: float) -> BookEvaluation:
    """Return what a call came to; an agent that two edges saw counts at the first by index."""
    answers = sorted(answers, key=lambda one: one[0])
    reasons, signed, told = Counter[str](), set[int](), list[int]()
    for _, answer in answers:
        reasons.update(answer.reasons)
        signed.update(answer.clients)
        told += answer.unsigned
    # Two edges may tell of one agent, and one of the two what it has signed.
    unsigned = set(told) - signed
    reasons[UNSIGNED] += len(unsigned)
    asked = sum(answer.asked for _, answer in answers) - (len(told) - len(unsigned))
    named = Counter[str]()
    for _, answer in answers:
        named[answer.metric] += len(answer.rows)
    # What most opinions are, so that no edge decides alone; of equals the first.
    metric = max(+named, key=named.__getitem__, default="")
    ours = [(edge, answer) for edge, answer in answers if answer.metric == metric]
    every = sum(len(answer.rows) for _, answer in answers)
    rows = np.concatenate([_NONE, *(answer.rows for _, answer in ours)])
    edges = joined([np.full(len(answer.rows), edge) for edge, answer in ours], np.int64)
    reasons[OTHER_METRIC] += every - len(rows)
    # The first of equals: edges stand in the order of their indices.
    _, first = np.unique(rows["client"], return_index=True)
    asked -= len(rows) - len(first)
    rows, edges = rows[first], edges[first]
    return BookEvaluation(
        mode=call.mode,
        round=call.round,
        slot=call.slot,
        digest=call.digest,
        asked=asked,
        client=rows["client"],
        edge=edges,
        reasons=dict((+reasons).most_common(MAX_REASONS)),
        seconds=round(max(0.0, now - call.began), 6),
        metric=metric,
        score=rows["score"] + 0.0,  # no -0.0: the books do not keep its sign
        samples=rows["samples"],
        epsilon=rows["epsilon"] + 0.0,
    )


def without_answers(round_: int, slot: int, digest: str, clients: int) -> BookEvaluation:
    """Return the evaluation of a model that a coordinator died over."""
    nobody = result(Call(mode=OpinionMode.REPORT, round=round_, slot=slot, digest=digest), (), 0.0)
    return structs.replace(nobody, asked=clients, reasons={RESTART: clients} if clients else {})


def _moments(message: EdgeMoments, recipe: Recipe) -> EdgeAnswer:
    if message.agents > message.asked:
        raise ProtocolError("more agents answered than were asked")
    found, agents = None, message.agents if message.moments else 0
    if message.moments:
        most = agents * recipe.limits.max_samples
        found = Moments.decode(message.moments, features=recipe.model.features, most=most)
    return EdgeAnswer(message.asked, moments=found, agents=agents)


def _fill(told: Rows, message: Opinions) -> None:
    score = column(message.score, np.float32, "score").astype(np.float64)
    samples = column(message.samples, np.int64, "samples")
    epsilon = column(message.epsilon, np.float32, "epsilon").astype(np.float64)
    if not len(epsilon):
        epsilon = np.zeros(len(told))
    if {len(score), len(samples), len(epsilon)} != {len(told)}:
        raise ProtocolError("columns of opinions differ in length")
    # Written so that NaN is out of range too.
    if not ((score >= 0) & (score <= 1)).all():
        raise ProtocolError("an opinion is not in [0, 1]")
    if not (np.isfinite(epsilon) & (epsilon >= 0)).all() or not (samples > 0).all():
        raise ProtocolError("an epsilon or a number of samples is out of range")
    told["score"], told["samples"], told["epsilon"] = score, samples, epsilon


def unmet_needs(needs: frozenset[str], asked: OpinionMode | None) -> frozenset[str]:
    """Return those needs that no agent reports and no run has that asks its clients for this."""
    return needs & (NOT_FEATURES - {CLAIM_GAP, LOSSES} - _PROVIDES.get(asked, frozenset()))
