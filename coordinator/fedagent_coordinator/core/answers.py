"""What edges answer when their clients evaluate a model, checked (docs/opinions.md)."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.columns import claims_in, column
from fedagent_protocol.errors import MalformedError, safe_text
from fedagent_protocol.messages import EdgeMoments, Opinions, Volunteers
from fedagent_protocol.opinions import Asked
from fedagent_task.moments import Moments, MomentsError

from .edges import EdgeSession
from .signed_answers import BoolArray, ClaimedRows, Said

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

MAX_REASON = 32
OTHER = "other"


class RefusedAnswerError(MalformedError):
    """Raised when an edge's answer is impossible; `word` is what is counted."""

    def __init__(self, word: str, detail: str) -> None:
        super().__init__(detail)
        self.word = word


Word = Callable[[ClaimedRows], BoolArray]
"""Says which rows are their client's own word; rows without an index are none."""
Index = Callable[[EdgeSession, npt.NDArray[np.int32]], npt.NDArray[np.int32]]
"""Gives the run-wide indices of sessions, -1 of those that have none."""


@dataclass(frozen=True, slots=True, eq=False)
class EdgeAnswer:
    """What one edge answered, by run-wide clients; volunteers have no columns but `client`.

    Attributes:
        named: Agents that the edge has ever named.
    """

    client: IntArray  # int64[P], like the columns up to `epsilon`
    asked: int  # agents that were asked there, at least P
    named: tuple[str, ...] = ()
    score: FloatArray = field(default_factory=lambda: np.zeros(0))
    samples: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    epsilon: FloatArray = field(default_factory=lambda: np.zeros(0))
    metric: str = ""
    reasons: Mapping[str, int] = field(default_factory=dict)
    moments: Moments | None = None  # what the samples of `agents` agents add up to
    agents: int = 0
    unsigned: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    """Clients whose answer is not shown to be their own, and does not count."""


def moments_in(message: EdgeMoments, *, model: str, features: int, max_samples: int) -> EdgeAnswer:
    """Return what the samples at an edge add up to."""
    if message.model != model:
        raise RefusedAnswerError("model", "statistics for another model")
    if message.agents > message.asked:
        raise RefusedAnswerError("range", "more agents answered than were asked")
    reasons = _reasons(message.reasons)
    found, agents = None, message.agents if message.moments else 0
    if message.moments:
        try:
            found = Moments.decode(message.moments, features=features, most=agents * max_samples)
        except MomentsError as error:
            raise RefusedAnswerError(f"moments_{error}", "statistics that cannot be") from error
    none: IntArray = np.zeros(0, dtype=np.int64)
    return EdgeAnswer(none, message.asked, reasons=reasons, moments=found, agents=agents)


def opinions_in(
    message: Opinions, session: EdgeSession, index: Index, word: Word, *, model: str
) -> EdgeAnswer:
    """Return the opinions in a message whose ids the session knows."""
    if message.model != model:
        raise RefusedAnswerError("model", "an opinion of another model")
    client = _clients(message, session, index)
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

    def said(asked: Asked, agent: str, row: int) -> bytes:
        told = float(score[row]), int(samples[row]), float(epsilon[row])
        return asked.scored(agent, message.metric, *told)

    known = _of_their_word(message, session, client, said, word)
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


def volunteers_in(
    message: Volunteers, session: EdgeSession, index: Index, word: Word
) -> EdgeAnswer:
    """Return the volunteers in a message whose ids the session knows."""
    client = _clients(message, session, index)

    def said(asked: Asked, agent: str, _row: int) -> bytes:
        return asked.volunteer(agent, session.id)

    known = _of_their_word(message, session, client, said, word)
    asked = max(message.asked, len(client))
    unsigned = client[~known & (client >= 0)]
    return EdgeAnswer(client[known], asked, tuple(session.ids), unsigned=unsigned)


def _of_their_word(
    message: Opinions | Volunteers, session: EdgeSession, client: IntArray, said: Said, word: Word
) -> BoolArray:
    """Return bool[rows], which of them have an index and are their client's word."""
    claims = claims_in(message.claim, len(client))
    agents = [session.ids[row] for row in column(message.session, np.int32, "session").tolist()]
    return word(ClaimedRows(session.id, client, agents, claims, said))


def _reasons(named: Mapping[str, int]) -> dict[str, int]:
    if any(count < 0 for count in named.values()):
        raise RefusedAnswerError("range", "less than no agents have a reason")
    reasons: Counter[str] = Counter()
    for why, count in named.items():
        reasons[safe_text(why, limit=MAX_REASON) or OTHER] += count
    return reasons


def _clients(message: Opinions | Volunteers, session: EdgeSession, index: Index) -> IntArray:
    """Return int64[rows], -1 of agents that have no index."""
    rows = column(message.session, np.int32, "session")
    if len(rows) and not (rows.min() >= 0 and rows.max() < len(session.ids)):
        raise RefusedAnswerError("session", "a row names an unknown session")
    if len(np.unique(rows)) != len(rows):
        raise RefusedAnswerError("twice", "a session has two rows")
    return index(session, rows).astype(np.int64)
