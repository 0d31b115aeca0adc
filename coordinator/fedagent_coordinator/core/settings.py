"""What a run is made of, as the engine needs it, and where it stands."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_coordinator.policies.state import grown
from fedagent_protocol.messages import OpinionMode
from fedagent_task.aggregation import ALL_TRAIN, Rules, Strategy
from fedagent_task.aggregation.averaging import FedAvg
from fedagent_task.aggregation.robust import PLAIN, Robust
from fedagent_task.recipe.spec import Recipe

from .effects import BookEvaluation


def milliseconds(seconds: float) -> float:
    """Return a duration as events and the books keep it."""
    return round(1000.0 * seconds, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A run: its recipe, and what its process adds."""

    run: str
    coordinator: str
    recipe: Recipe
    task: str  # its digest
    body: bytes  # its canonical bytes
    wait_edges: int = 1  # how many must be there before the first round
    wait_agents: int = 1
    resume_wait_s: float = 10.0  # how long a resumed run waits for as many
    observe_timeout_s: float = 0.5  # how long a silent edge holds a round up
    grace_s: float = 2.0  # how much longer than `max_wait_ms` an edge may take to report
    needs_wait_s: float = 10.0  # how long agents may take to measure a feature for the first time
    load_limit_ms: int = 0  # training computation of a round on a device; 0 for no limit
    opinions: OpinionMode | None = None  # what clients are asked for after a merge
    strategy: Strategy = field(default_factory=FedAvg)
    rules: Rules = ALL_TRAIN
    robust: Robust = PLAIN
    first_call_s: float = 10.0  # how long the first evaluation takes at least: streams open
    held_out: bool = False  # models are evaluated on a held-out set too
    linger_s: float = 0.0  # how long the end of the run is repeated
    proofs: bool = False  # an update counts that its agent has signed, and no other
    site: str = ""  # which agents name in what they sign

    @property
    def deadline_ms(self) -> int:
        """Edges are told whole milliseconds."""
        return round(1000 * self.recipe.rounds.deadline_s)


def merge_period(recipe: Recipe) -> int:
    """Return how many rounds there are to a merge (T_ES); placed rounds merge every round."""
    return 1 if recipe.placement.rents else recipe.rounds.merge_every


def is_last(recipe: Recipe, done: int) -> bool:
    """Return whether no round follows after so many settled ones."""
    return 0 < recipe.rounds.count <= done


def merges(recipe: Recipe, done: int) -> bool:
    """Return whether a merge follows the settled round that makes them so many.

    Settled rounds are counted: their numbers may leave some out, also on the word of an edge.
    """
    return is_last(recipe, done) or done % merge_period(recipe) == 0


def most_weight(strategy: Strategy, recipe: Recipe) -> float:
    """Return the largest weight of one update."""
    limits = recipe.limits
    return strategy.most_weight(
        max_samples=limits.max_samples, norm_limit=limits.norm, rate=recipe.learner.rate
    )


@dataclass(frozen=True, slots=True)
class Window:
    """What one edge has learnt since the last merge: its `model`, which holds that.

    `weight` is that of its updates, `local_steps` their mean steps, added over the rounds, as are
    the median norms, `norm`.
    """

    model: str
    weight: float = 0.0
    local_steps: float = 0.0
    norm: float = 0.0

    def after(
        self, model: str, weight: float, steps: float, norm: float, *, ordered: int, most: float
    ) -> "Window":
        """Return it after a round more, as the edge says; `most` is the weight of one update."""
        weight = self.weight + min(weight, most * max(ordered, 1))
        return Window(model, weight, self.local_steps + steps, self.norm + norm)


def by_client(client: IntArray, score: FloatArray, clients: int) -> FloatArray:
    """Return float64[clients], NaN where none; later clients than these are left out."""
    opinions = np.full(clients, np.nan)
    known = client < clients
    opinions[client[known]] = score[known]
    return opinions


@dataclass(slots=True, kw_only=True)
class Evaluations:
    """What a run asks its clients for in `mode`, nothing by default, after `every` merges.

    Volunteers are asked for after as many rounds.
    """

    mode: OpinionMode | None = None
    every: int = 1
    count: int = 0  # merges, or rounds, since the last
    evaluated: int = 0  # models evaluated so far
    pending: int | None = None  # the round whose model is evaluated before another is decided
    opinions: FloatArray = field(default_factory=lambda: np.zeros(0))  # the last, NaN where none
    volunteers: frozenset[int] = frozenset()  # clients of the last evaluation
    trained: set[str] = field(default_factory=set)  # agents with updates in the model since then

    @classmethod
    def of(cls, recipe: Recipe, mode: OpinionMode | None) -> "Evaluations":
        """Return those of a run before its first round."""
        peers = mode is OpinionMode.PEERS
        every = recipe.peers.slot_rounds if peers else recipe.opinions.every
        return cls(mode=mode, every=every)

    def is_due(self, *, merges: bool, played: bool, last: bool, used: Iterable[str] = ()) -> bool:
        """Count a settled round that `used` updates; return whether its model is to be evaluated.

        Slots of policies count their rounds so: one begins with the first round in which an agent
        was ordered (`played`). Volunteers are asked for again after a round in which none could
        play, and not after the last one.
        """
        if self.mode is None:
            return False
        peers = self.mode is OpinionMode.PEERS
        if peers:
            self.trained.update(used)
        if (peers or merges) and (played or self.count):
            self.count += 1
        due = merges and (self.count >= self.every or (peers and not played))
        if due:
            self.count = 0
        return due and not (peers and last)

    def take(self, found: BookEvaluation) -> None:
        """Keep the result of an evaluation."""
        self.evaluated = found.slot
        if found.peers:
            self.volunteers = frozenset(found.client.tolist())
            return
        self.opinions = grown(self.opinions, int(found.client.max(initial=-1)) + 1, np.nan)
        self.opinions[found.client] = found.score

    def shown(self, clients: int) -> dict[str, Any]:
        """Return what a view has of so many clients' last answers, by name of its column."""
        match self.mode:
            case OpinionMode.REPORT:
                return {"opinions": grown(self.opinions, clients, np.nan)[:clients].copy()}
            case OpinionMode.PEERS:
                shown = np.zeros(clients, dtype=np.bool_)
                shown[[client for client in self.volunteers if client < clients]] = True
                return {"volunteers": shown}
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands when the engine starts.

    No round begins before `open_at`, by the clock of the engine's `now`: a former process began the
    last one so recently. `client_starts` is int64[N], as the last round showed it.
    """

    next_round: int  # number of the next round; none before it is open
    rounds_done: int
    spent_micro: int
    model: str
    model_size: int  # its bytes; the same for every model of the run
    model_round: int = 0  # the round after which it was merged; 0 for the one the run begins with
    state: str = ""  # digest of what the server optimiser knew after it; empty for nothing
    good: str = ""  # digest of the model before it; empty for none
    windows: Mapping[str, Window] = field(default_factory=dict)  # by edge, not merged yet
    evaluations: Evaluations = field(default_factory=Evaluations)
    open_at: float = 0.0
    client_starts: IntArray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    paid_work: frozenset[tuple[str, int]] = frozenset()  # agent and round, of the newest rounds
    updates: Mapping[str, int] = field(default_factory=dict)  # of each agent, that were paid
