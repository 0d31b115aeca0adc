"""Whole runs written through the real store, for commands that read."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import structs

from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.effects import (
    BookEvaluation,
    HeldOutEvaluated,
    Reserve,
    Settle,
)
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


PRICES = [1_000_000, 1_500_000]
TOLD: Any = {"upload_bps": [2e6, np.nan], "battery": [0.8, np.nan], "temperature_c": [51, 48]}


def begin(store: Books, recipe: str, agents: list[str]) -> str:
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


def play(store: Books, run: str, plan: Reserve, result: Settle, *, policy: str) -> None:
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
    with Books(folder, identity=identity) as store:
        run = begin(store, recipe, ["agent-a", "agent-b"])
        for round_ in range(1, rounds + 1):
            view = small_view(round_, PRICES, budgets=[4_000_000], **TOLD)
            plan = small_plan(view)
            play(store, run, plan, small_result(plan, {0}), policy="random")
            store.save_model(run, round_, digest if round_ == rounds else "0" * 64, len(data))
            store.save_metrics(
                run, HeldOutEvaluated(round_, digest, {metric or "accuracy": 0.5 + round_ / 10})
            )
        if end:
            store.end_run(run, "rounds")
    return run


EVALUATED_RECIPE = """
name = "evaluated"
model = { kind = "softmax", features = 64, classes = 10 }
rounds = { count = 4, deadline_s = 1.0 }
budget = { per_edge = 4.0, total = 100 }
evaluation = { dataset = "digits-test", target = 0.85 }
policy = { name = "POLICY" }
opinions = { mode = "MODE" }
"""
ROUNDS = 3
SCORES = np.array([[0.3, 0.2, 0.1], [0.5, 0.6, 0.1], [0.7, 0.6, 0.2], [0.9, 0.8, 0.3]])
"""Opinions by round of the model (0..3) and client."""


def write_evaluated(folder: Path, *, mode: str = "report", epsilon: float = 0.0) -> None:
    """Write a run of three rounds.

    Client 2 is too late with its opinion of the model of round 2.
    """

    def evaluation(round_: int) -> BookEvaluation:
        if mode == "peers":
            return structs.replace(volunteers(round_, [0, 1 + round_ % 2]), asked=3, seconds=0.5)
        here = (0, 1) if round_ == 2 else (0, 1, 2)
        return opinions(
            round_,
            {client: SCORES[round_, client] for client in here},
            asked=3,
            samples=np.full(len(here), 40, dtype=np.int64),
            epsilon=np.full(len(here), epsilon),
            reasons={"late": 1} if len(here) < 3 else {},
        )

    policy = "volunteers" if mode == "peers" else "random"
    with Books(folder) as store:
        recipe = EVALUATED_RECIPE.replace("MODE", mode).replace("POLICY", policy)
        run = begin(store, recipe, ["agent-a", "agent-b", "agent-c"])
        store.indices(run).label_clients({"agent-a": "kitchen"})
        store.save_evaluation(run, evaluation(0))
        for round_ in range(1, ROUNDS + 1):
            plan = small_plan(small_view(round_, [1_000_000] * 3, budgets=[4_000_000]), [0, 1])
            play(store, run, plan, small_result(plan, {0, 1}), policy=policy)
            store.save_model(run, round_, "d" * 64, 9)
            store.save_metrics(
                run, HeldOutEvaluated(round_, "d" * 64, {"accuracy": 0.5 + round_ / 10})
            )
            store.save_evaluation(run, evaluation(round_))
        store.end_run(run, "rounds")
