"""What a run calls its clients for, and where its calls stand after a restart."""

import logging
from typing import TypedDict

from fedagent_protocol.messages import OpinionMode
from fedagent_task.errors import RecipeError
from fedagent_task.spec import Recipe

from . import policies
from .core.evaluation import without_answers
from .core.evaluation_schedule import EvaluationSchedule
from .core.settings import NO_EVALUATIONS, PastEvaluations, Progress
from .policies.base import OPINIONS, SelectionPolicy
from .store import Store

_log = logging.getLogger(__name__)


def mode_of(recipe: Recipe, policy: SelectionPolicy) -> OpinionMode | None:
    """Return what clients of a run are called for; None for nothing."""
    match recipe.opinions.mode:
        case "auto":
            return OpinionMode.REPORT if OPINIONS in policy.needs else None
        case "off":
            return None
        case mode:
            return OpinionMode(mode)


def every_of(recipe: Recipe, mode: OpinionMode | None) -> int:
    """Return how many merges, or rounds of volunteers, there are to a call."""
    return recipe.peers.slot_rounds if mode is OpinionMode.PEERS else recipe.opinions.every


def merge_every_of(recipe: Recipe) -> int:
    """Return how many rounds there are to a merge; placed rounds merge every round."""
    return 1 if recipe.placement.rents else recipe.rounds.merge_every


class CallSettings(TypedDict):
    """The fields of `Settings` that shape a call."""

    opinions_every: int
    opinions_timeout_s: float
    volunteers: int


def settings_of(recipe: Recipe, mode: OpinionMode | None) -> CallSettings:
    """Return how often a run in this mode calls, and how long it waits."""
    return {
        "opinions_every": every_of(recipe, mode),
        "opinions_timeout_s": recipe.opinions.timeout_s,
        "volunteers": recipe.peers.best,
    }


def check_slots(recipe: Recipe, policy: SelectionPolicy) -> None:
    """Refuse slots that may end without an opinion: the policy would never learn.

    Merges go by the number of a round, slots by the rounds in which somebody played: one
    voided or empty round, and they no longer end together. Calls count as slots do, but
    two of them in one slot fall apart over an empty round too.

    Raises:
        RecipeError: Rounds do not all merge, or models are evaluated neither after each
            round nor once in `slot_rounds`.
    """
    if OPINIONS not in policy.needs or mode_of(recipe, policy) is not OpinionMode.REPORT:
        return
    spec = recipe.policy
    given = {**policies.parameters(spec.name), **spec.params}.get("slot_rounds")
    every, merges = recipe.opinions.every, merge_every_of(recipe)
    if isinstance(given, int) and (merges > 1 or every not in (1, given)):
        raise RecipeError(
            "opinions.every",
            f"makes a call for opinions every {every * merges} rounds, "
            f"policy.params.slot_rounds of {spec.name} is {given}",
            f"take opinions.every = {given} and rounds.merge_every = 1",
        )


def resumed(store: Store, run_id: str, recipe: Recipe, mode: OpinionMode | None) -> PastEvaluations:
    """Return where the calls of a run stand; a lost one is booked as answered by nobody.

    A coordinator that died between the end of a round and its evaluation cannot know any
    more what clients thought: the books say so (``restart``) before anything is learnt from
    them. Volunteers are called for again, because nothing is learnt from who they were.
    """
    if mode is None:
        return NO_EVALUATIONS
    read = store.read
    evaluated = read.evaluations.rows(run_id)
    since = evaluated[-1].round if evaluated else 0
    schedule = EvaluationSchedule(mode, every_of(recipe, mode))
    owing = _owing(schedule, read.progress(run_id), read.done_rounds(run_id, since), recipe)
    if owing is not None and mode is OpinionMode.REPORT:
        model = read.models.last(run_id)
        digest = model.digest if model is not None and model.round == owing else ""
        clients = store.indices(run_id).sizes()[0]
        store.evaluate(run_id, without_answers(owing, len(evaluated) + 1, digest, clients))
        _log.warning("nobody's opinion counts for round %d: the coordinator was restarted", owing)
        opinions = read.evaluations.last_opinions(run_id)
        return PastEvaluations(evaluated=len(evaluated) + 1, opinions=opinions)
    if not evaluated and read.progress(run_id).rounds_done == 0:
        owing = 0
    last = read.evaluations.volunteers(run_id, since)
    return PastEvaluations(
        evaluated=len(evaluated),
        count=schedule.count,
        pending_round=owing,
        opinions=read.evaluations.last_opinions(run_id),
        volunteers=frozenset(row.client for row in last),
        trained=frozenset(read.trained_since(run_id, since)),
    )


def _owing(
    schedule: EvaluationSchedule, progress: Progress, done: list[tuple[int, int]], recipe: Recipe
) -> int | None:
    """Count the rounds since the last call; return the last one if its call is missing."""
    due = False
    for place, (round_, ordered) in enumerate(done, start=1 + progress.rounds_done - len(done)):
        last = 0 < recipe.rounds.count <= place
        merges = last or round_ % merge_every_of(recipe) == 0
        due = schedule.is_due(merges=merges, played=ordered > 0, last=last)
    return done[-1][0] if due else None
