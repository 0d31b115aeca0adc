"""How an edge weighs updates by its task's strategy, and what it does with what devices tell."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_edge.core.admission import Verdict, check_content
from fedagent_edge.core.weighing import weighing_of
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_task.privacy import accountant
from fedagent_task.privacy.accountant import deviation_of
from fedagent_task.recipe.spec import (
    AggregationSpec,
    LearnerSpec,
    LimitsSpec,
    ModelSpec,
    PrivacySpec,
    TaskSpec,
)
from fedagent_task.recipe.text import task_bytes

from .harness import RUN as RUN_HERE
from .harness import Field, ToyAgent, expected_mean, field_of, model_tensors

RUN, TASK = "0" * 32, "a" * 64
SOFTMAX = ModelSpec(kind="softmax", features=2, classes=2)


def task(name: str, **params: float) -> bytes:
    return task_bytes(
        TaskSpec(
            model=SOFTMAX,
            learner=LearnerSpec(rate=0.5, batch=10, buffer=40, passes=2),
            limits=LimitsSpec(norm=3.0),
            aggregation=AggregationSpec(name=name, params={**params}),
        )
    )


@pytest.mark.parametrize(
    ("name", "reason"), [("fednova", "no local_steps"), ("qfedavg", "no base_loss")]
)
def test_who_does_not_tell_is_paid_and_not_used(tmp_path: Path, name: str, reason: str) -> None:
    field = field_of(tmp_path, 1, body=task(name))
    field.order()
    report = field.run_until_report()
    (one,) = report.outcomes
    assert (one.valid, one.used, one.weight, one.reason) == (True, False, 0, reason)
    assert report.failed == "0 of 1 updates"


def test_control_variates_have_a_limit_of_their_own() -> None:
    tensors = {"w": np.full(4, 1.0, np.float32), "control/w": np.full(4, 5.0, np.float32)}
    data = encode_tensors(tensors)
    manifest = Manifest.of(tensors)

    def verdict(**limits: float) -> Verdict:
        return check_content(data, digest_of(data), manifest, 3.0, **limits)  # type: ignore[arg-type] # floats

    assert verdict() == Verdict(norm=2.0, control_norm=10.0)
    assert verdict(control_limit=10.0).valid
    assert verdict(control_limit=9.0).reason == "control_norm"
    assert weighing_of(task("scaffold")).control_limit == 12.0
    counted = check_content(data, digest_of(data), manifest, 1.0, latest=("w",))
    assert counted == Verdict(norm=0.0, control_norm=10.0)


def test_an_edge_without_the_strategy_refuses_the_round_and_says_so(tmp_path: Path) -> None:
    field = Field(tmp_path, {"a0": ToyAgent("a0")})
    for number, name in enumerate(("fedsuper", "fedavg"), 1):
        named = f"{number}" * 64
        welcome = m.EdgeWelcome(run=RUN_HERE, coordinator="coord", task=named, body=task(name))
        field.coordinator(welcome)
        field.give_model()
        field.agents["a0"].hello(field)
        field.run_for(0.5)
        field.order(number, task=named)
        report = field.run_until_report(number)
        assert ("fedsuper" in report.failed) is (name == "fedsuper")


PRIVATE = task_bytes(
    TaskSpec(
        model=ModelSpec(kind="softmax", features=2, classes=2),
        privacy=PrivacySpec(mode="central", clip=3.0, releases=10),
    )
)


def test_a_sum_gets_noise_before_the_edge_has_a_model_of_it(tmp_path: Path) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    noise = deviation_of(PrivacySpec(mode="central", clip=3.0, releases=10))
    field = field_of(tmp_path, 4, size=20_000, body=PRIVATE)
    sent: list[bytes] = []
    for number in (1, 2):
        field.order(number, weighting=m.Weighting.UNIFORM)
        report = field.run_until_report(number)
        assert (report.used, report.failed) == (4, "")
        assert all(one.norm == 0 for one in report.outcomes), "a norm tells of a single update"
        sent.append(field.model_bytes(report.model))
    first = decode_tensors(sent[0], Manifest.of(model_tensors(20_000)))["weight"]
    plain = expected_mean(20_000, dict.fromkeys(field.agents, 1.0))["weight"]
    difference = first.astype(np.float64) - plain
    assert difference.std() == pytest.approx(noise / 4, rel=0.03)


def test_without_the_accountant_the_edge_runs_no_private_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accountant, "find_spec", lambda _: None)
    for cached in (accountant._for_one, accountant.epsilon_of, weighing_of):
        cached.cache_clear()
    field = field_of(tmp_path, 2, body=PRIVATE)
    field.order(1, weighting=m.Weighting.UNIFORM)
    report = field.run_until_report(1)
    assert "[privacy]" in report.failed
    assert not any(agent.orders for agent in field.agents.values())
    weighing_of.cache_clear()
