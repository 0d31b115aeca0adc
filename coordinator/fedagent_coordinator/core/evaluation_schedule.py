"""When a run asks its clients to evaluate a model, for what, and what they answered last."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.policies.base import OPINIONS, VOLUNTEERS, Feedback, RoundView
from fedagent_protocol.messages import OpinionMode

from .effects import BookEvaluation, BookOpinions
from .evaluation import ClientEvaluation, OpinionEvaluation, VolunteerEvaluation
from .orders import OrderedRound
from .settings import PastEvaluations, Settings

FloatArray = npt.NDArray[np.float64]

DueEvaluation = Callable[[str, float], ClientEvaluation]
"""Begins an evaluation of the model with this digest now."""


@dataclass(slots=True)
class EvaluationSchedule:
    """Counts towards the next evaluation, as slots of policies count their rounds.

    Attributes:
        mode: What is asked for; None for nothing, ever.
        every: Merges from one evaluation to the next; rounds in mode ``peers``.
    """

    mode: OpinionMode | None
    every: int = 1
    count: int = 0

    def is_due(self, *, merges: bool, played: bool, last: bool) -> bool:
        """Count a settled round; return whether its model is to be evaluated.

        A slot begins with the first round in which an agent was ordered (`played`). Volunteers are
        asked for again after a round in which none could play, and not after the last one.
        """
        if self.mode is None:
            return False
        peers = self.mode is OpinionMode.PEERS
        if (peers or merges) and (played or self.count):
            self.count += 1
        due = merges and (self.count >= self.every or (peers and not played))
        if due:
            self.count = 0
        return due and not (peers and last)


class LastOpinions:
    """The last opinion of each client."""

    def __init__(self, opinions: dict[int, float]) -> None:
        self._last: FloatArray = np.zeros(0)
        clients = np.array(list(opinions), dtype=np.int64)
        self.put(clients, np.array(list(opinions.values()), dtype=np.float64))

    def put(self, client: npt.NDArray[np.int64], score: FloatArray) -> None:
        """Replace the opinions of these clients."""
        top = int(client.max()) + 1 if len(client) else 0
        if top > len(self._last):
            self._last = self.shown(top)
        self._last[client] = score

    def shown(self, clients: int) -> FloatArray:
        """Return float64[clients], NaN where none."""
        shown = np.full(clients, np.nan)
        known = self._last[:clients]
        shown[: len(known)] = known
        return shown


class EvaluationPlan:
    """The evaluations of a run; of one that asks its clients for nothing, none.

    Attributes:
        provides: Needs of policies that are met by it and are no features.
        taught: The policy learns from a round after its model was evaluated.
    """

    provides: frozenset[str] = frozenset()
    taught = False

    def __init__(self, settings: Settings, past: PastEvaluations) -> None:
        self._settings = settings
        self._schedule = EvaluationSchedule(settings.opinions, settings.opinions_every, past.count)
        self._evaluated = past.evaluated
        self._pending = past.pending_round if settings.opinions is not None else None

    def due(self, ordered: OrderedRound, feedback: Feedback, *, last: bool) -> DueEvaluation | None:
        """Count a settled round; return the evaluation of its model if that is due."""
        played = bool(len(feedback.pairs))
        due = self._schedule.is_due(merges=ordered.want_model, played=played, last=last)
        return partial(self._begin, ordered.round) if due else None

    def pending(self) -> DueEvaluation | None:
        """Return an evaluation that comes before the next round, once."""
        round_, self._pending = self._pending, None
        return None if round_ is None else partial(self._begin, round_)

    def take(self, found: BookEvaluation) -> None:
        """Keep the result of an evaluation."""
        self._evaluated = found.slot

    def shown_in(self, view: RoundView) -> RoundView:
        """Return the view with what clients answered last."""
        return view

    def _begin(self, round_: int, digest: str, now: float) -> ClientEvaluation:
        s = self._settings
        until = now + max(s.opinions_timeout_s, 0.0 if self._evaluated else s.first_call_s)
        evaluation = VolunteerEvaluation if s.opinions is OpinionMode.PEERS else OpinionEvaluation
        return evaluation(
            round=round_,
            slot=self._evaluated + 1,
            digest=digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
            wanted=s.volunteers,
            trained=self._trained_since(),
        )

    def _trained_since(self) -> frozenset[str]:
        return frozenset()


class OpinionPlan(EvaluationPlan):
    """Clients report opinions, which policies see and learn from."""

    provides = frozenset({OPINIONS})
    taught = True

    def __init__(self, settings: Settings, past: PastEvaluations) -> None:
        super().__init__(settings, past)
        self._last = LastOpinions(past.opinions)

    def take(self, found: BookEvaluation) -> None:
        """Keep the opinions."""
        assert isinstance(found, BookOpinions)
        super().take(found)
        self._last.put(found.client, found.score)

    def shown_in(self, view: RoundView) -> RoundView:
        """Return the view with the last opinion of each client."""
        return replace(view, opinions=self._last.shown(len(view.client_price)))


class VolunteerPlan(EvaluationPlan):
    """Clients volunteer for the rounds that follow."""

    provides = frozenset({VOLUNTEERS})

    def __init__(self, settings: Settings, past: PastEvaluations) -> None:
        super().__init__(settings, past)
        self._volunteers = past.volunteers or frozenset()
        self._trained = set(past.trained)

    def due(self, ordered: OrderedRound, feedback: Feedback, *, last: bool) -> DueEvaluation | None:
        """Count a settled round, and note who trained."""
        self._trained.update(ordered.agents(np.flatnonzero(feedback.used).tolist()))
        return super().due(ordered, feedback, last=last)

    def take(self, found: BookEvaluation) -> None:
        """Keep the volunteers."""
        super().take(found)
        self._volunteers = frozenset(found.client.tolist())

    def shown_in(self, view: RoundView) -> RoundView:
        """Return the view with those who volunteered last; nobody before the first time."""
        shown = np.zeros(len(view.client_price), dtype=np.bool_)
        shown[[client for client in self._volunteers if client < len(shown)]] = True
        return replace(view, volunteers=shown)

    def _trained_since(self) -> frozenset[str]:
        trained, self._trained = frozenset(self._trained), set()
        return trained


def evaluation_plan(settings: Settings, past: PastEvaluations) -> EvaluationPlan:
    """Return the plan of a run that asks its clients for what the settings say."""
    match settings.opinions:
        case OpinionMode.REPORT:
            return OpinionPlan(settings, past)
        case OpinionMode.PEERS:
            return VolunteerPlan(settings, past)
        case _:
            return EvaluationPlan(settings, past)
