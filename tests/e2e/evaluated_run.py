"""Runs whose models were evaluated, written through the real store by the real policy."""

from pathlib import Path

import msgspec
import numpy as np

from fedagent_coordinator import policies
from fedagent_coordinator.core.effects import (
    BookOpinions,
    BookVolunteers,
    Details,
    EdgeResult,
    Reserve,
    Settle,
)
from fedagent_coordinator.policies.base import Feedback, RoundView, Selection
from fedagent_coordinator.policies.selection import explained
from fedagent_coordinator.store import Store
from fedagent_task.recipe import parse_recipe

RECIPE = """
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


def view_of(round_: int, opinions: np.ndarray | None) -> RoundView:
    return RoundView(
        round=round_,
        pair_client=np.arange(3, dtype=np.int32),
        pair_edge=np.zeros(3, dtype=np.int32),
        pair_features=PLACES,
        feature_names=("x_km", "y_km"),
        client_price=np.full(3, 1_000_000, dtype=np.int64),
        client_available=np.ones(3, dtype=np.bool_),
        edge_budget=np.array([4_000_000], dtype=np.int64),
        opinions=opinions,
    )


def feedback_of(
    view: RoundView, selection: Selection, opinions: np.ndarray | None = None
) -> Feedback:
    count = len(selection.pairs)
    yes, nan = np.ones(count, dtype=np.bool_), np.full(count, np.nan)
    return Feedback(
        view=view,
        pairs=selection.pairs,
        X=yes,
        used=yes,
        tau_s=np.full(count, 0.2),
        dt_s=nan,
        lc_s=nan,
        ut_s=nan,
        censored=~yes,
        void=~yes,
        arrivals=np.zeros(count, dtype=np.int64),
        num_samples=np.full(count, 50, dtype=np.int64),
        seconds_per_iteration=nan,
        opinions=opinions,
    )


def opinions_of(round_: int, *, late: int | None = None, epsilon: float = 0.0) -> BookOpinions:
    """Everybody's opinion of a model but that of the client who is late."""
    client = np.array([c for c in range(3) if c != late], dtype=np.int64)
    count = len(client)
    return BookOpinions(
        round=round_,
        slot=round_ + 1,
        digest="d" * 64,
        metric="accuracy",
        asked=3,
        client=client,
        edge=np.zeros(count, dtype=np.int64),
        score=SCORES[round_, client],
        samples=np.full(count, 40, dtype=np.int64),
        epsilon=np.full(count, epsilon),
        reasons={} if late is None else {"late": 1},
        seconds=0.25,
    )


def volunteers_of(round_: int) -> BookVolunteers:
    return BookVolunteers(
        round=round_,
        slot=round_ + 1,
        digest="d" * 64,
        asked=3,
        client=np.array([0, 1 + round_ % 2], dtype=np.int64),
        edge=np.zeros(2, dtype=np.int64),
        reasons={},
        seconds=0.5,
    )


def write_evaluated(
    folder: Path, *, mode: str = "report", epsilon: float = 0.0
) -> dict[int, object]:
    """Write a run of three rounds; return the policy's belief after each.

    Client 2 is too late with its opinion of the model of round 2.
    """
    policy = policies.create("bp-ucb", clients_per_round=2, mu=0.1)
    beliefs: dict[int, object] = {}
    with Store(folder) as store:
        text = RECIPE.replace("MODE", mode).replace("POLICY", DECIDES[mode])
        run = store.begin_run(
            recipe_digest="d" * 64,
            recipe=msgspec.json.encode(parse_recipe(text)).decode(),
            seed=7,
            total_micro=100_000_000,
        )
        store.indices(run.run_id).clients(list(AGENTS))
        store.indices(run.run_id).label_clients({"agent-a": "kitchen"})
        store.indices(run.run_id).label_edge("edge-0", "hall")
        evaluate = mode == "report"
        store.evaluate(
            run.run_id, opinions_of(0, epsilon=epsilon) if evaluate else volunteers_of(0)
        )
        last = SCORES[0].copy()
        for round_ in range(1, ROUNDS + 1):
            view = view_of(round_, last if evaluate else None)
            selection = policy.select(view_of(round_, last), np.random.default_rng(0))
            if not evaluate:  # neither scores nor notes of what nobody told
                selection = explained(view, selection.pairs)
            fair = np.ones(len(selection.pairs), dtype=np.int64)
            store.reserve(run.run_id, Reserve(round_, view, selection, fair), policy="bp-ucb")
            store.settle(run.run_id, _settled(round_, feedback_of(view, selection)))
            store.save_model(run.run_id, round_, "d" * 64, 9)
            store.save_metrics(run.run_id, round_, "d" * 64, {"accuracy": 0.5 + round_ / 10})
            late = 2 if round_ == 2 else None
            booked = opinions_of(round_, late=late, epsilon=epsilon)
            store.evaluate(run.run_id, booked if evaluate else volunteers_of(round_))
            said = SCORES[round_].copy()
            if late is not None:
                said[late] = np.nan
            policy.learn(feedback_of(view_of(round_, last), selection, said))
            beliefs[round_] = policy.state()["belief"].tolist()
            last = np.where(np.isfinite(said), said, last)
        store.end_run(run.run_id, "complete")
    return beliefs


def _settled(round_: int, feedback: Feedback) -> Settle:
    count = len(feedback.pairs)
    nan = np.full(count, np.nan)
    return Settle(
        round_,
        feedback,
        Details(("arrived",) * count, nan, nan, nan, ("",) * count),
        (EdgeResult("edge-0", 0, count, count, count, count * 1_000_000, "", "", 50.0),),
        {"observe": 5.0, "train": 900.0},
    )
