"""A run of three rounds written through the real store, for commands that read."""

from hashlib import sha256
from pathlib import Path

import msgspec
import numpy as np

from fedagent_coordinator.core.effects import Details, EdgeResult, Reserve, Settle
from fedagent_coordinator.policies.base import Bound, Feedback, RoundView, Selection
from fedagent_coordinator.store import Store
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.recipe import parse_recipe

RECIPE = """
name = "digits"
model = { kind = "softmax", features = 64, classes = 10 }
rounds = { count = 3, deadline_s = 1.0 }
budget = { per_edge = 4.0, total = 100 }
evaluation = { dataset = "digits-test" }
"""
PRICES = np.array([1_000_000, 1_500_000], dtype=np.int64)


def plan(round_: int) -> Reserve:
    view = RoundView(
        round=round_,
        pair_client=np.array([0, 1], dtype=np.int32),
        pair_edge=np.array([0, 0], dtype=np.int32),
        pair_features=np.zeros((2, 1), dtype=np.float32),
        feature_names=("compute",),
        client_price=PRICES,
        client_available=np.ones(2, dtype=np.bool_),
        edge_budget=np.array([4_000_000], dtype=np.int64),
    )
    selection = Selection(
        pairs=np.array([0, 1], dtype=np.int64),
        scores=np.ones(2),
        bound=np.full(2, Bound.CHOSEN, dtype=np.int8),
        notes={},
    )
    return Reserve(round_, view, selection, np.array([1, 1], dtype=np.int64))


def result(reserved: Reserve) -> Settle:
    """Agent 0 came in time, agent 1 never."""
    came = np.array([True, False])
    nan = np.full(2, np.nan)
    feedback = Feedback(
        view=reserved.view,
        pairs=reserved.selection.pairs,
        X=came,
        used=came,
        tau_s=np.array([0.2, 1.0]),
        dt_s=nan,
        lc_s=nan,
        ut_s=nan,
        censored=~came,
        void=~came,
        arrivals=np.zeros(2, dtype=np.int64),
        num_samples=np.array([50, 0], dtype=np.int64),
        seconds_per_iteration=nan,
    )
    return Settle(
        reserved.round,
        feedback,
        Details(("arrived", "missed"), nan, nan, nan, ("", "silent")),
        (EdgeResult("edge-0", 0, 2, 1, 1, 1_000_000, "", "", 50.0),),
        {"observe": 5.0, "train": 900.0},
    )


def write_run(
    folder: Path, *, rounds: int = 3, end: bool = True, recipe: str = RECIPE, metric: str = ""
) -> str:
    """Write a run and its last model; return its id.

    Its accuracy grows by a tenth each round, from 0.6; another metric has the same values.
    """
    tensors = {"weight": np.ones((10, 64), dtype=np.float32), "bias": np.zeros(10, np.float32)}
    data = encode_tensors(tensors)
    digest = sha256(data).hexdigest()
    models = folder / "models"
    models.mkdir(parents=True, exist_ok=True)
    (models / digest).write_bytes(data)
    with Store(folder) as store:
        run = store.begin_run(
            recipe_digest="d" * 64,
            recipe=msgspec.json.encode(parse_recipe(recipe)).decode(),
            seed=7,
            total_micro=100_000_000,
        )
        indices = store.indices(run.run_id)
        indices.clients(["agent-a", "agent-b"])
        indices.label_edge("edge-0", "hall")
        for round_ in range(1, rounds + 1):
            reserved = plan(round_)
            store.reserve(run.run_id, reserved, policy="random")
            store.settle(run.run_id, result(reserved))
            store.save_model(
                run.run_id, round_, digest if round_ == rounds else "0" * 64, len(data)
            )
            metrics = {metric or "accuracy": 0.5 + round_ / 10}
            store.save_metrics(run.run_id, round_, digest, metrics)
        if end:
            store.end_run(run.run_id, "complete")
    return run.run_id
