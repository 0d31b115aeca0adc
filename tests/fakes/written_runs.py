"""Whole runs written through the real store, for commands that read."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np
from msgspec import structs

from fedagent_coordinator import policies
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.effects import (
    BookOpinions,
    BookVolunteers,
    HeldOutEvaluated,
    Reserve,
    Settle,
)
from fedagent_coordinator.policies.base import RoundView
from fedagent_coordinator.policies.selection import explained
from fedagent_node.data_dir import Identity
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.recipe.text import parse_recipe

from .stored_runs import opinions, small_plan, small_result, small_view, volunteers

RECIPE = """
name = "digits"
model = { kind = "softmax", features = 64, classes = 10 }
data = { scale = 0.0625 }
rounds = { count = 3, deadline_s = 1.0 }
budget = { per_edge = 4.0, total = 100 }
evaluation = { dataset = "digits-test" }
"""


def begin(store: Store, recipe: str, agents: list[str]) -> str:
    """Begin a run of a recipe at one edge, the hall; return its id."""
    run = store.begin_run(
        recipe_digest="d" * 64,
        recipe=msgspec.json.encode(parse_recipe(recipe)).decode(),
        seed=7,
        total_micro=100_000_000,
    ).run_id
    store.indices(run).clients(agents)
    store.indices(run).edge("edge-0")
    store.indices(run).label_edge("edge-0", "hall")
    return run


def play(store: Store, run: str, plan: Reserve, result: Settle, *, policy: str) -> None:
    store.reserve(run, plan, policy=policy)
    store.settle(run, structs.replace(result, timing_ms={"observe": 5.0, "train": 900.0}))


def write_run(
    folder: Path,
    *,
    rounds: int = 3,
    end: bool = True,
    recipe: str = RECIPE,
    metric: str = "",
    identity: Identity | None = None,
) -> str:
    """Write a run and its last model; return its id.

    Agent 0 always comes in time, agent 1 never. The accuracy grows by a tenth each round,
    from 0.6; another metric has the same values.
    """
    rng = np.random.default_rng(0)
    shapes = {"weight": (10, 64), "bias": (10,)}
    tensors = {name: rng.normal(size=shape).astype("f4") for name, shape in shapes.items()}
    data = encode_tensors(tensors)
    digest = sha256(data).hexdigest()
    (folder / "models").mkdir(parents=True, exist_ok=True)
    (folder / "models" / digest).write_bytes(data)
    with Store(folder, identity=identity) as store:
        run = begin(store, recipe, ["agent-a", "agent-b"])
        for round_ in range(1, rounds + 1):
            plan = small_plan(small_view(round_, [1_000_000, 1_500_000], budgets=[4_000_000]))
            play(store, run, plan, small_result(plan, {0}), policy="random")
            store.save_model(run, round_, digest if round_ == rounds else "0" * 64, len(data))
            store.save_metrics(
                run, HeldOutEvaluated(round_, digest, {metric or "accuracy": 0.5 + round_ / 10})
            )
        if end:
            store.end_run(run, "complete")
    return run


EVALUATED_RECIPE = """
name = "evaluated"
model = { kind = "softmax", features = 64, classes = 10 }
rounds = { count = 4, deadline_s = 1.0 }
budget = { per_edge = 4.0, total = 100 }
evaluation = { dataset = "digits-test", target = 0.85 }
policy = POLICY
opinions = { mode = "MODE" }
"""
DECIDES = {
    "report": '{ name = "bp-ucb", params = { clients_per_round = 2, mu = 0.1 } }',
    "peers": '{ name = "volunteers" }',
}
ROUNDS = 3
AGENTS = ("agent-a", "agent-b", "agent-c")
PLACES = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.2]], dtype=np.float32)
SCORES = np.array([[0.3, 0.2, 0.1], [0.5, 0.6, 0.1], [0.7, 0.6, 0.2], [0.9, 0.8, 0.3]])
"""Opinions by round of the model (0..3) and client."""


def view_of(round_: int, given: np.ndarray | None) -> RoundView:
    view = small_view(round_, [1_000_000] * 3, budgets=[4_000_000])
    return replace(view, pair_features=PLACES, feature_names=("x_km", "y_km"), opinions=given)


def opinions_of(round_: int, *, late: int | None = None, epsilon: float = 0.0) -> BookOpinions:
    """Everybody's opinion of a model but that of the client who is late."""
    scores = {client: SCORES[round_, client] for client in range(3) if client != late}
    return opinions(
        round_,
        scores,
        asked=3,
        samples=np.full(len(scores), 40, dtype=np.int64),
        epsilon=np.full(len(scores), epsilon),
        reasons={} if late is None else {"late": 1},
    )


def volunteers_of(round_: int) -> BookVolunteers:
    return structs.replace(volunteers(round_, [0, 1 + round_ % 2]), asked=3, seconds=0.5)


def write_evaluated(
    folder: Path, *, mode: str = "report", epsilon: float = 0.0
) -> dict[int, object]:
    """Write a run of three rounds; return the policy's belief after each.

    Client 2 is too late with its opinion of the model of round 2.
    """
    policy = policies.create("bp-ucb", clients_per_round=2, mu=0.1)
    beliefs: dict[int, object] = {}
    evaluate = mode == "report"
    with Store(folder) as store:
        recipe = EVALUATED_RECIPE.replace("MODE", mode).replace("POLICY", DECIDES[mode])
        run = begin(store, recipe, list(AGENTS))
        store.indices(run).label_clients({"agent-a": "kitchen"})
        store.save_evaluation(
            run, opinions_of(0, epsilon=epsilon) if evaluate else volunteers_of(0)
        )
        last = SCORES[0].copy()
        for round_ in range(1, ROUNDS + 1):
            view = view_of(round_, last if evaluate else None)
            selection = policy.select(view_of(round_, last), np.random.default_rng(0))
            if not evaluate:  # neither scores nor notes of what was never sent
                selection = explained(view, selection.pairs)
            plan = structs.replace(small_plan(view, selection.pairs.tolist()), selection=selection)
            result = small_result(plan, set(range(3)))
            play(store, run, plan, result, policy="bp-ucb")
            store.save_model(run, round_, "d" * 64, 9)
            store.save_metrics(
                run, HeldOutEvaluated(round_, "d" * 64, {"accuracy": 0.5 + round_ / 10})
            )
            late = 2 if round_ == 2 else None
            found = opinions_of(round_, late=late, epsilon=epsilon)
            store.save_evaluation(run, found if evaluate else volunteers_of(round_))
            given = SCORES[round_].copy()
            if late is not None:
                given[late] = np.nan
            policy.learn(replace(result.feedback, view=view_of(round_, last), opinions=given))
            beliefs[round_] = policy.state()["belief"].tolist()
            last = np.where(np.isfinite(given), given, last)
        store.end_run(run, "complete")
    return beliefs
