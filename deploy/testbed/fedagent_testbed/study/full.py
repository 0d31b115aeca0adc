"""A study with everything real but clocks, brokers and training: `play_full`.

The round engine, the edges' rounds, the agents' sessions, the ledger and the policy run as
they do in a live federation, in virtual time, under the links, prices and devices of a
study's world. Where that differs from `play` is in `docs/testbed.md`.
"""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np

from fedagent_agent.core.device import Readings
from fedagent_coordinator import policies
from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.books.rows import OutcomeRow
from fedagent_coordinator.policies import RoundView
from fedagent_coordinator.policies.base import OPINIONS, TRUTH, VOLUNTEERS
from fedagent_protocol.messages import Weighting
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import (
    MICRO,
    BudgetSpec,
    LearnerSpec,
    ModelSpec,
    OpinionsSpec,
    Params,
    PeersSpec,
    PolicySpec,
    Recipe,
    RoundsSpec,
)
from fedagent_testbed.kernel import Faults
from fedagent_testbed.recipe import TestbedRecipe
from fedagent_testbed.world import Ending, VirtualFederation
from fedagent_testbed.worlds import LinkedWorld, Times, can_fail, make_world

from .history import History
from .selection import lacking, make_policy, policy_params

LAN = Faults(delay_s=0.001, jitter_s=0.0005)
"""What a message takes beside the transfers; nothing is lost."""
_MODEL = ModelSpec(kind="softmax", features=16, classes=2)
_CHUNK_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True, eq=False)
class FullRun:
    """What a run of the whole federation left behind."""

    history: History  # as of `play`; without accuracies
    ending: Ending
    outcomes: tuple[OutcomeRow, ...]  # by the names of the agents in the study
    digest: str  # of all messages that arrived, with time, place and topic, in their order


class StudyAir:
    """Surroundings as a study's world draws them; edge `i` is ``edge-i``, as agents are."""

    def __init__(self, world: LinkedWorld) -> None:
        self._world = world
        self._round = 0
        self._rows: dict[tuple[int, int], int] = {}
        self.view: RoundView
        self.times: Times
        self.begin(1)

    def begin(self, round_: int) -> bool:
        """Draw a round; False if it is drawn already."""
        if round_ <= self._round:
            return False
        # A world is seen round by round, also those that the engine leaves out.
        for t in range(self._round + 1, round_ + 1):
            self.view = self._world.view(t)
        times = self._world.times
        assert times is not None, "the world was seen"
        self._round, self.times = round_, times
        pairs = zip(self.view.pair_client.tolist(), self.view.pair_edge.tolist(), strict=True)
        self._rows = {pair: row for row, pair in enumerate(pairs)}
        return True

    def sees(self) -> dict[str, tuple[str, ...]]:
        """Return the edges that each agent sees."""
        seen: dict[str, tuple[str, ...]] = {}
        for client, edge in self._rows:
            agent = f"agent-{client}"
            seen[agent] = (*seen.get(agent, ()), f"edge-{edge}")
        return seen

    def row(self, agent: str, edge: str) -> int:
        """Return the pair of the view."""
        return self._rows[index(agent), index(edge)]

    def device(self, agent: str) -> Readings:
        """Return what an agent is able to, and asks for."""
        client = index(agent)
        first = int(np.argmax(self.view.pair_client == client))
        return Readings(
            available=bool(self.view.client_available[client]),
            price_micro=int(self.view.client_price[client]),
            slow_s=float(self.times.lc_s[first]),
        )

    def features(self, agent: str, edge: str) -> Mapping[str, float]:
        """Return the features of a pair."""
        values = self.view.pair_features[self.row(agent, edge)].tolist()
        named = zip(self.view.feature_names, values, strict=True)
        return {name: value for name, value in named if math.isfinite(value)}

    def transfer_s(self, agent: str, edge: str, *, up: bool) -> float:
        """Return how long the link of a pair takes for a whole model."""
        stage = self.times.ut_s if up else self.times.dt_s
        return float(stage[self.row(agent, edge)])


def index(name: str) -> int:
    """Return i of ``agent-i`` or ``edge-i``."""
    return int(name.rpartition("-")[2])


def check_full(recipe: TestbedRecipe, name: str) -> None:
    """Raise a `RecipeError` if a policy or its recipe cannot be played by a whole federation."""
    hint = "leave out --full, or change the recipe"
    if recipe.world.kind not in {"radio", "traces"}:
        reason = f"is {recipe.world.kind}, which has no links for a whole federation"
        raise RecipeError("world.kind", reason, hint)
    if recipe.world.churn.share:
        raise RecipeError(
            "world.churn.share", "replaces agents in mid run, which no federation can", hint
        )
    if failing := can_fail(recipe):
        reason = "is not played by a whole federation, whose links carry every message"
        raise RecipeError(failing, reason, hint)
    policy = make_policy(recipe, name)
    live = "needs what no live coordinator knows" if TRUTH in policy.needs else ""
    if why := live or lacking(recipe, policy):
        raise RecipeError("policy", f"{name} {why}", "take another policy, or change the recipe")


def play_full(recipe: TestbedRecipe, policy: str, seed: int, directory: Path) -> FullRun:
    """Run a policy in a whole federation in virtual time, without training, in an empty directory.

    Deterministic by seed, the order of all messages included; only the run's id is new.

    Raises:
        PolicyError: The policy fails, or a parameter is wrong.
        RecipeError: The policy cannot run on this recipe, or not in a federation.
    """
    check_full(recipe, policy)
    world = make_world(recipe, seed)
    assert isinstance(world, LinkedWorld)
    air = StudyAir(world)
    federation = VirtualFederation(
        directory,
        live_recipe(recipe, policy, seed),
        seed=seed,
        edges=recipe.world.edges,
        agents=recipe.world.clients,
        faults=LAN,
        chunk_bytes=_CHUNK_BYTES,
        air=air,
        sees=air.sees(),
    )
    messages = hashlib.sha256()

    def note(port: str, topic: str) -> None:
        messages.update(f"{federation.kernel.now:.9f} {port} {topic}\n".encode())

    federation.network.heard = note
    longest = max(recipe.rounds.deadline_s, recipe.rounds.max_wait_s) + 10.0
    ending = federation.run(seconds=60.0 + recipe.rounds.count * longest)
    history, outcomes = _read(federation, policy, seed)
    return FullRun(history, ending, outcomes, messages.hexdigest())


def live_recipe(recipe: TestbedRecipe, policy: str, seed: int) -> Recipe:
    """Return a study as the recipe of a live run, without training."""
    limits, slots = recipe.rounds, recipe.world.training.slot_rounds
    needs = make_policy(recipe, policy).needs
    # Clients are called for after a merge, and slots end where they may: every round merges.
    evaluated = bool(needs & {OPINIONS, VOLUNTEERS})
    base, given = policy_params(recipe, policy)
    if "model_bits" in policies.parameters(base):
        # The model of the run is tiny; the world's transfers are those of its own.
        given.setdefault("model_bits", recipe.world.work.download_mbit * 1e6)
    try:
        params = msgspec.convert(given, Params)
    except msgspec.ValidationError as error:
        raise RecipeError(f"policies.{policy}", str(error), "see docs/recipe.md") from error
    # As many volunteer as the policy takes, if that is a parameter.
    best = params.get("clients_per_round")
    return Recipe(
        name="study",
        seed=seed,
        model=_MODEL,
        learner=LearnerSpec(name="none"),
        rounds=RoundsSpec(
            count=limits.count,
            deadline_s=limits.deadline_s,
            max_wait_s=max(limits.deadline_s, limits.max_wait_s),
            min_updates=limits.min_updates,
            merge_every=1 if evaluated else limits.merge_every,
            weighting=Weighting.UNIFORM,
        ),
        budget=BudgetSpec(per_edge_micro=recipe.budget_micro),
        policy=PolicySpec(
            name=base,
            params=params,
            exploration=recipe.policy.exploration,
            exploration_bound=recipe.policy.exploration_bound,
        ),
        opinions=OpinionsSpec(
            mode="peers" if VOLUNTEERS in needs else "auto", every=slots if evaluated else 1
        ),
        peers=PeersSpec(
            best=best if isinstance(best, int) and best > 0 else PeersSpec().best,
            slot_rounds=slots,
        ),
    )


def _read(
    federation: VirtualFederation, policy: str, seed: int
) -> tuple[History, tuple[OutcomeRow, ...]]:
    with open_reader(federation.coordinator.directory) as read:
        run = read.run()
        outcomes = tuple(
            replace(row, agent=federation.names[row.agent]) for row in read.outcomes(run.run_id)
        )
        means = [(one.round, one.mean) for one in read.evaluations.rows(run.run_id)]
        trained_ms = {row.round: row.timing_ms.get("train", 0.0) for row in read.rounds(run.run_id)}
    rows = [
        {
            "wins": 0,
            "selected": 0,
            "spent": 0.0,
            "seconds": trained_ms.get(t, 0.0) / 1000,
            "decide_ms": math.nan,  # virtual time stands still while a policy thinks
            "accuracy": math.nan,
            "opinion": math.nan,
            "explored": 0,
        }
        for t in range(1, federation.coordinator.recipe.rounds.count + 1)
    ]
    history = History(policy, seed, rows)
    for number, mean in means:
        if number and mean is not None:
            rows[number - 1]["opinion"] = mean
    clients = np.array([index(row.agent) for row in outcomes], dtype=np.int64)
    history.counts = np.bincount(clients)
    for row in outcomes:
        at = rows[row.round - 1]
        at["selected"] += 1
        at["wins"] += row.in_time
        at["spent"] += row.paid_micro / MICRO
    return history, outcomes
