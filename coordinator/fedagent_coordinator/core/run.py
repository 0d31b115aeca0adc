"""A run as its phases share it: edges, models, numbers, money, and what is to be done.

Phases put effects into it in the order in which they are to be performed: what is written to disk
stands before everything that relies on it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from msgspec import structs

from fedagent_coordinator.policies.base import NOT_FEATURES, BoolArray
from fedagent_node.effects import Effect, Emit, Input, Send
from fedagent_protocol.messages import (
    AnyMessage,
    EdgeWelcome,
    OpinionMode,
    ReportReceipt,
    RoundOpen,
)
from fedagent_protocol.signed import Vouching
from fedagent_task.scoring.measures import measures_of

from . import effects as fx
from .answers import Call
from .decision import Learning
from .edges import EdgeSession, EdgeTable, GlobalModels, Indices, Members
from .observation import SignedTerms
from .paid_work import PaidWork
from .readiness import AGENTS, DECLINED, EDGES, TARGET, ClientBackoff, Readiness, longer
from .settings import Evaluations, Progress, Settings, is_last

MOST_SKIPPED = 10_000
"""Edges are believed that so many rounds were ordered since a backup; of one start, in all."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.1, 1.0
REMIND_S = 30.0
NOBODY_ORDERED_S = 1.0
EMPTY_ROUND_S, MAX_EMPTY_ROUND_S = 0.25, 5.0
"""How long a round takes at least while rounds bring no valid update."""


@dataclass(slots=True)
class Numbers:
    """The number of the current round and of the last settled one; none is used twice.

    Edges may say that they were ordered later rounds: then these books are of a backup. `claimed`
    is the largest number so, `skipped` how many were left out.
    """

    round: int
    settled: int
    claimed: int
    skipped: int = 0

    def claim(self, ordered: int, *, undecided: bool) -> str:
        """Take in the number of a round that an edge was ordered; return what to say of it.

        Each claim skips as many numbers at least as all before it: some fifteen reach
        `MOST_SKIPPED`, so that no edge, and no crowd of them, has all others asked for the same
        again and again.
        """
        newest = max(self.round - undecided, self.claimed)
        if ordered <= newest:
            return ""
        room = MOST_SKIPPED - self.skipped
        if ordered - newest > room:
            return (
                f"says that it was ordered round {ordered}: here it is {self.round}, and more than "
                f"{MOST_SKIPPED} are not skipped; ignored"
            )
        more = min(max(ordered - newest, self.skipped), room)
        self.claimed, self.skipped = newest + more, self.skipped + more
        return (
            f"was already ordered round {ordered}: the database is from a backup; continuing "
            f"with round {newest + more + 1}"
        )

    def go_on(self) -> None:
        """Go on after the last number that is used."""
        self.settled = max(self.settled, self.claimed)
        self.round = self.settled + 1


class Run:
    """What outlives a phase.

    Args:
        settings: The run.
        progress: Where it stands.
        learning: It learns when the store performs `Learn`.
        indices: Run-wide indices of clients and edges.
        paid_at: Who was paid for a round at an edge; None where no report of it was settled.
        clock: For durations only; the caller's idea of now otherwise.
    """

    vouching: Vouching = Vouching()
    """Signs for the devices of a site, where there is one."""

    def __init__(
        self,
        settings: Settings,
        progress: Progress,
        learning: Learning,
        indices: Indices,
        paid_at: Callable[[int, str], frozenset[str] | None],
        clock: Callable[[], float],
    ) -> None:
        recipe = settings.recipe
        self.settings, self.indices, self.paid_at = settings, indices, paid_at
        self.counters: Counter[str] = Counter()
        self._effects: list[Effect] = []
        self._last: list[Effect] = []
        self.edges = EdgeTable(indices, dict(progress.windows))
        self.models = GlobalModels(
            run=settings.run,
            edges=self.edges,
            do=self.do,
            digest=progress.model,
            size=progress.model_size,
            round=progress.model_round,
            once=recipe.model.once,
            once_bytes=recipe.model.once_bytes,
            state=progress.state,
            good=progress.good or progress.model,
        )
        self.members, self.terms = Members(), SignedTerms()
        self.called: dict[str, str] = {}
        """What edges call devices; the site's own names stand before."""
        self.said: dict[str, str] = {}
        """What devices said of their samples, as far as it was passed on."""
        last = progress.next_round - 1
        self.numbers = Numbers(progress.next_round, last, last)
        self.rounds_done, self.spent_micro = progress.rounds_done, progress.spent_micro
        oldest, known = recipe.aggregation.oldest_work, set(progress.paid_work)
        self.paid_work = PaidWork(oldest, known, Counter(progress.updates))
        self.learning, self.clock = learning, clock
        resumed, needs = progress.rounds_done > 0, learning.policy.needs - NOT_FEATURES
        self.readiness = Readiness(settings, needs, resumed=resumed)
        past, planned = progress.evaluations, Evaluations.of(recipe, settings.opinions)
        mode, every = planned.mode, planned.every
        self.evaluations = replace(past, mode=mode, every=every, trained=set(past.trained))
        self.unmeasured, self.measurements = recipe.data.standardize, 0
        self.client_backoff = ClientBackoff()
        self.waited = "", 0
        """What was waited for last, and how many were there; nothing once a round is decided."""
        self._pause_s = self.waits_until = self._announced_at = 0.0
        self._empty_s = self.opens_at = self.not_before = 0.0
        self.status = fx.ShowStatus()
        self.evaluating, self.evaluated = 0, ""
        """How many models are being evaluated on the held-out set; the last one that was."""
        self.cut_until = -math.inf
        """Until when the silence of edges may be our own broker's."""
        self.starts, self._reached = progress.client_starts, 0
        self._seq = progress.next_round << 20  # grows over restarts

    @property
    def free_micro(self) -> int | None:
        """What is left of the run's budget; None for no limit."""
        total = self.settings.recipe.budget.total_micro
        return None if total is None else max(0, total - self.spent_micro)

    @property
    def over(self) -> str:
        """Why no round follows; empty if one does."""
        rounds = self.settings.recipe.rounds
        if is_last(self.settings.recipe, self.rounds_done):
            return "rounds"
        return TARGET if rounds.stop == TARGET and self._reached >= rounds.patience else ""

    def judge(self, metrics: Mapping[str, float]) -> None:
        """Count how many models in a row have come to the target."""
        recipe, target = self.settings.recipe, self.settings.recipe.evaluation.target
        for measure in measures_of(recipe)[:1]:
            if (value := measure.of(metrics)) is not None:
                reached = measure.rank(value) >= measure.rank(target)
                self._reached = self._reached + 1 if reached else 0

    def do(self, *effects: Effect) -> None:
        """Have this done after all that is to be done already."""
        self._effects += effects

    def to_do(self) -> list[Effect]:
        """Return what is to be done, once."""
        found, self._effects, self._last = [*self._effects, *self._last], [], []
        return found

    def send(self, edge: str, message: AnyMessage) -> None:
        """Send a message of this run, numbered."""
        self._seq = max(self._seq + 1, self.numbers.round << 20)
        message = structs.replace(message, run=self.settings.run, seq=self._seq)
        # The store adds the head of the ledger.
        self.do(Send(edge, message, stored=isinstance(message, EdgeWelcome | ReportReceipt)))

    def welcome(self, edge: str) -> None:
        """Answer a hello."""
        s = self.settings
        welcome = EdgeWelcome(
            round=self.numbers.round,
            coordinator=s.coordinator,
            task=s.task,
            body=s.body,
            recipe=s.recipe.name,
            claim=self.vouching.task(s.run, s.task),
        )
        self.send(edge, welcome)

    def ask_columns(self, edge: EdgeSession) -> None:
        """Ask an edge for this round's columns."""
        known = len(edge.ids)
        self.send(edge.id, RoundOpen(round=self.numbers.round, epoch=edge.epoch, known=known))

    def show(self, status: fx.ShowStatus) -> None:
        """Keep for people what is waited for, and which edges are there."""
        known = self.edges.by_id.values()
        self.status = structs.replace(
            status,
            edges_live=sum(edge.live for edge in known),
            next_at=self.not_before,
            silent=tuple(edge.id for edge in known if not edge.live),
            trouble={edge.id: edge.trouble for edge in known if edge.live and edge.trouble},
        )
        self.do(self.status)

    def announce(self, reason: str, now: float, *, edges: int, agents: int = 0) -> None:
        """Wait for what is missing, ever longer; say so if it changes, or now and then."""
        found = {EDGES: edges, AGENTS: agents}.get(reason, 0)
        former, self.waited = self.waited, (reason, found)
        self._pause_s = longer(
            self._pause_s if reason == former[0] else 0.0, FIRST_PAUSE_S, MAX_PAUSE_S
        )
        self.waits_until = now + self._pause_s
        if former == self.waited and now - self._announced_at < REMIND_S:
            return
        self._announced_at = now
        wanted = self.readiness.wanted(reason, now)
        detail = self.client_backoff.reason(now) if reason == DECLINED else ""
        fields: dict[str, object] = {"reason": reason, "edges": edges, "agents": agents}
        fields |= {"wanted": wanted} if wanted else {}
        fields |= {"detail": detail} if detail else {}
        self.do(Emit("waiting", fields))
        self.show(fx.ShowStatus(waiting=reason, detail=detail, found=found, wanted=wanted))

    def commit_model(self, round_: int, digest: str, state: str, now: float) -> None:
        """Make a model that is another one the global one after a round."""
        self.do(fx.CommitModel(round_, digest, state))
        self.models.adopt(digest, round_, now)
        self.models.state = state
        self.evaluate_model(round_, digest)

    def evaluate_model(self, round_: int, digest: str) -> None:
        """Have a model evaluated on the held-out set; nobody waits for it."""
        self.evaluating += 1
        self._last.append(fx.EvaluateHeldOut(round_, digest, self.models.size))

    def call(self, round_: int, now: float) -> Call:
        """Return what clients are asked of the global model after a round, from now on."""
        s, so_far = self.settings, self.evaluations
        opens_s = 0.0 if so_far.evaluated else s.first_call_s
        until = now + max(s.recipe.opinions.timeout_s, opens_s)
        trained, so_far.trained = frozenset(so_far.trained), set()
        return Call(
            mode=s.opinions or OpinionMode.REPORT,
            round=round_,
            slot=so_far.evaluated + 1,
            digest=self.models.digest,
            began=now,
            until=until,
            give_up_at=until + s.grace_s,
            wanted=s.recipe.peers.best,
            trained=trained,
        )

    def pace(self, unpaid: BoolArray, *, began: float, now: float) -> None:
        """Note when the next round may open; `unpaid` is bool[S], who brought no valid update."""
        if not len(unpaid):
            self.opens_at = now + NOBODY_ORDERED_S
            return
        longest = longer(self._empty_s, EMPTY_ROUND_S, MAX_EMPTY_ROUND_S)
        self._empty_s = longest if unpaid.all() else 0.0
        self.opens_at = began + self._empty_s


class Phase:
    """What a run is doing, from when it is made; after everything that happens it takes a step.

    `takes` has a method for each result of a job that it waits for. `due` is when a step is wanted
    although nothing happens; each step sets it.
    """

    takes: dict[type[Input], Callable[..., None]] = {}  # noqa: RUF012 - of the class

    def __init__(self, run: Run) -> None:
        self.run, self.due = run, math.inf

    def step(self, now: float) -> "Phase":  # noqa: ARG002 - the interface's argument
        """Do what is due; return the phase that follows, itself if none does."""
        return self

    def greet(self, edge: EdgeSession, now: float) -> None:
        """Bring an edge that is new, back or restarted up to date."""
