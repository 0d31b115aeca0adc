"""A round with a liar at an edge: what it does to the model, also over kills and late updates."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedagent_edge.core import receipts
from fedagent_edge.core.weighing import weighing_of
from fedagent_protocol.messages import Weighting
from fedagent_protocol.tensors import Manifest, decode_tensors
from fedagent_task.aggregation.alignment import OPPOSED
from fedagent_task.aggregation.robust import registry
from fedagent_task.recipe.checks import recipe_faults
from fedagent_task.recipe.spec import (
    AggregationSpec,
    ModelSpec,
    PrivacySpec,
    SecureAggregationSpec,
    TaskSpec,
)
from fedagent_task.recipe.text import task_bytes
from tests.fakes.coordinator_site import recipe

from .harness import Field, ToyAgent, model_tensors

RULES = registry.names()
AGENTS = 7


def common(size: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    return {
        key: rng.normal(size=one.shape).astype(np.float32)
        for key, one in model_tensors(size).items()
    }


def ruled(folder: Path, rule: str, *, size: int = 64, lie: float = 1.0, samples: int = 10) -> Field:
    """Return a field of devices that agree, but for the first."""
    agents = {}
    for index in range(AGENTS):
        rng = np.random.default_rng(index)
        tensors = {
            key: one + 0.5 * rng.normal(size=one.shape).astype(np.float32)
            for key, one in common(size).items()
        }
        agent = ToyAgent(f"a{index}", work_s=0.1 + 0.2 * index, size=size, tensors=tensors)
        agents[agent.id] = agent
    agents["a0"].tensors = {k: np.float32(lie) * one for k, one in common(size).items()}
    agents["a0"].samples = samples
    model = ModelSpec(kind="softmax", features=2, classes=2)
    body = task_bytes(TaskSpec(model=model, aggregation=AggregationSpec(robust=rule)))
    return Field(folder, agents, size=size, body=body).ready()


def moved(field: Field, size: int) -> float:
    """Return how far the edge's model is from the last, in norms of what the devices agree on."""
    base = model_tensors(size)
    data = field.model_bytes(field.reports[-1].model)
    model = decode_tensors(data, Manifest.of(base))
    far = sum(float(np.square(model[k] - base[k]).sum()) for k in base)
    usual = sum(float(np.square(one).sum()) for one in common(size).values())
    return float(np.sqrt(far / usual))


@pytest.mark.parametrize("rule", [name for name in RULES if name != "none"])
def test_one_liar_moves_the_model_by_no_more_than_an_honest_device(
    tmp_path: Path, rule: str
) -> None:
    size = 80_000
    field = ruled(tmp_path, rule, size=size, lie=1e6, samples=1_000_000)
    field.order(deadline_ms=30_000, max_wait_ms=60_000, norm_limit=0.0, min_updates=AGENTS)
    report = field.run_until_report(1)
    assert report.failed == ""
    assert moved(field, size) < 1.5
    assert report.weight <= 10 * AGENTS + 10
    # Its work is paid: that it lies nobody knows but by what others send.
    assert all(one.valid for one in report.outcomes)


@pytest.mark.parametrize("rule", RULES)
def test_a_killed_edge_comes_to_the_same_model(
    tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receipts, "KEEP_S", 0.0)
    digests = []
    for kill in ("", "edge.spooled"):
        field = ruled(tmp_path / f"x{kill}", rule, lie=1e6)
        field.kill_at, field.kill_nth = kill, 3
        field.order(deadline_ms=30_000, max_wait_ms=60_000, norm_limit=0.0, min_updates=AGENTS)
        digests.append(field.run_until_report(1, max_s=70).model)
        assert field.kills == bool(kill)
    assert digests[0] == digests[1]


def test_who_points_against_the_others_is_paid_and_left_out_also_after_a_restart(
    tmp_path: Path,
) -> None:
    field = ruled(tmp_path, "clipped-mean", lie=-1.0)
    field.order(1)
    first = {one.agent: one for one in field.run_until_report(1).outcomes}
    assert (first["a0"].valid, first["a0"].used, first["a0"].reason) == (True, False, OPPOSED)
    assert all(first[f"a{i}"].used for i in range(1, AGENTS))
    field.restart()
    assert field.core.memory.alignments["a0"] < -0.5
    assert len(field.core.memory.told) == AGENTS


@pytest.mark.parametrize(
    "hidden",
    [
        {"privacy": PrivacySpec(mode="central")},
        {"secure_aggregation": SecureAggregationSpec(minimum_cohort=5)},
    ],
    ids=["central privacy", "secure aggregation"],
)
def test_a_rule_and_hidden_updates_exclude_each_other(hidden: dict[str, Any]) -> None:
    task = TaskSpec(model=ModelSpec(kind="softmax", features=2, classes=2))
    assert weighing_of(task_bytes(task)).robust.clip > 0
    assert weighing_of(task_bytes(structs.replace(task, **hidden))).robust.clip == 0
    rounds = structs.replace(recipe().rounds, weighting=Weighting.UNIFORM, count=5)
    named = AggregationSpec(robust="multi-krum")
    found = recipe_faults(structs.replace(recipe(), aggregation=named, rounds=rounds, **hidden))
    assert "aggregation.robust" in {key for key, _, _ in found}
