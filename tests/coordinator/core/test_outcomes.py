"""What devices say of a model: one mean by samples, of valid updates alone."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from fedagent_coordinator.core.effects import PLAIN, Settle
from fedagent_coordinator.core.outcomes import EdgePart, round_event, settle_round
from fedagent_coordinator.policies import Ending
from fedagent_protocol.messages import (
    LEFT,
    UNANSWERED,
    Outcome,
    OutcomeStatus,
    RoundReport,
    TrainStats,
)
from fedagent_task.aggregation.robust import registry
from fedagent_task.recipe.spec import LearnerSpec
from tests.fakes.engine_field import settings
from tests.fakes.stored_runs import small_plan, small_view


def _settle(*outcomes: Outcome, agents: Sequence[str] = ("a", "b")) -> Settle:
    return _ended(*outcomes, agents=agents)[0]


def _ended(
    *outcomes: Outcome,
    agents: Sequence[str] = ("a", "b"),
    failed: str = "",
    steps: float = 0.0,
    weight: float = 0.0,
) -> tuple[Settle, Counter[str]]:
    reserved = small_plan(small_view(1, [100] * len(agents)))
    part = EdgePart("edge-0", 0, 0.0, list(range(len(agents))), list(agents))
    part.report = RoundReport(
        epoch="0" * 32, outcomes=outcomes, failed=failed, local_steps=steps, weight=weight
    )
    run, odd = settings(), Counter[str]()
    recipe = structs.replace(run.recipe, learner=LearnerSpec(passes=3, buffer=100, batch=10))
    run = replace(run, recipe=recipe, robust=registry.create("clipped-mean"))
    return settle_round(reserved, [part], run, odd, waited_s=1.0), odd


def test_what_a_failed_edge_used_is_in_no_model_and_is_paid() -> None:
    used = Outcome(
        agent="a", status=OutcomeStatus.ARRIVED, valid=True, used=True, in_time=True, weight=1.0
    )
    found, failed = _ended(used)[0], _ended(used, failed="1 of 2 updates")[0]
    assert found.feedback.used.tolist() == [True, False]
    assert failed.feedback.used.tolist() == [False, False]
    assert failed.feedback.unpaid.tolist() == found.feedback.unpaid.tolist() == [False, True]


@pytest.mark.parametrize(
    ("told", "kept"), [(12.5, 12.5), (1e300, 30.0), (-1.0, 0.0), (float("nan"), 0.0)]
)
def test_an_edge_is_believed_no_more_steps_than_were_ordered(told: float, kept: float) -> None:
    settled, _ = _ended(steps=told)
    assert settled.edges[0].local_steps == kept  # 3 passes over 10 batches


@pytest.mark.parametrize(("claim", "kept"), [(1.5, 2.5), (1e30, 4.0)])
def test_no_weight_that_half_of_the_updates_claim_is_the_median(claim: float, kept: float) -> None:
    status = OutcomeStatus.ARRIVED
    honest = Outcome(agent="a", status=status, valid=True, used=True, weight=1.0)
    liar = structs.replace(honest, agent="b", weight=claim)
    settled, _ = _ended(honest, liar, weight=1.0 + claim)
    assert settled.edges[0].weight == kept  # twice as much for each at most


def _outcome(agent: str, mean: float, count: int, *, valid: bool = True) -> Outcome:
    """Return an outcome whose score and loss are the same."""
    status = OutcomeStatus.ARRIVED if valid else OutcomeStatus.REJECTED
    stats = TrainStats(score=mean, score_n=count, loss=mean, num_samples=count)
    return Outcome(agent=agent, status=status, valid=valid, stats=stats)


@pytest.mark.parametrize(
    ("status", "facts", "ending"),
    [
        ("arrived", {"valid": True, "in_time": True}, Ending.IN_TIME),
        ("arrived", {"in_time": True}, Ending.MISSED),
        ("late", {"valid": True}, Ending.LATE),
        ("missed", {}, Ending.MISSED),
        ("missed", {"reason": "complete after max_wait"}, Ending.MISSED),
        ("missed", {"reason": UNANSWERED}, Ending.GONE),
        ("gone", {"reason": LEFT}, Ending.GONE),
        ("gone", {"reason": "the edge has another task"}, Ending.EDGE),
        ("declined", {"reason": UNANSWERED}, Ending.DECLINED),
        ("rejected", {"reason": "non_finite"}, Ending.REJECTED),
    ],
)
def test_a_policy_is_told_why_an_order_failed(
    status: str, facts: dict[str, Any], ending: Ending
) -> None:
    told = Outcome(agent="a", status=OutcomeStatus(status), **facts)
    assert _settle(told, agents=["a"]).feedback.endings.tolist() == [ending]


def test_what_an_edge_did_not_tell_is_charged_to_the_edge() -> None:
    told = Outcome(agent="b", status=OutcomeStatus.MISSED)
    assert _settle(told).feedback.endings.tolist() == [Ending.EDGE, Ending.MISSED]


@pytest.mark.parametrize(
    ("outcomes", "mean", "count"),
    [
        ([_outcome("a", 0.5, 30), _outcome("b", 0.9, 10)], 0.6, 40),
        ([_outcome("a", 0.5, 30), _outcome("b", 1.0, 99, valid=False)], 0.5, 30),
        ([_outcome("a", 0.0, 0), _outcome("b", 0.0, 0)], None, 0),
    ],
    ids=["by their samples", "of valid updates", "without samples"],
)
def test_the_score_and_the_loss_of_a_model_are_those_of_its_devices(
    outcomes: list[Outcome], mean: float | None, count: int
) -> None:
    settled = _settle(*outcomes)
    said = round_event(settled, PLAIN, 0, 1.0).fields
    for name in ("device_score", "train_loss"):
        assert said[name] == (None if mean is None else pytest.approx(mean))
    assert settled.details.score == pytest.approx(mean or 0.0)
    assert settled.details.score_n == count


def test_the_words_of_a_device_have_nothing_in_them_that_moves_a_terminal() -> None:
    arrived = OutcomeStatus.ARRIVED
    words = "out of\x1b[2J proportion\r\n: \u202etemp\x07"
    settled = _settle(Outcome(agent="a", status=arrived, valid=True, reason=words))
    assert settled.details.reason[0] == "out of [2J proportion : temp"


@pytest.mark.parametrize(
    ("reasons", "shown"),
    [
        (["heat", "heat"], "2 declined (heat)"),
        (["", "battery"], "2 declined (1 without a reason, 1 battery)"),
        (["heat", "load", "load", "net", "full"], "5 declined (2 load, 1 heat, 1 net, 1 more)"),
    ],
)
def test_every_device_that_declined_has_its_own_reason(reasons: list[str], shown: str) -> None:
    names = [f"agent-{number}" for number in range(len(reasons))]
    declined = OutcomeStatus.DECLINED
    told = [
        Outcome(agent=name, status=declined, reason=reason)
        for name, reason in zip(names, reasons, strict=True)
    ]
    assert _settle(*told, agents=names).reason == shown


def test_only_valid_updates_of_those_that_were_ordered_are_paid_once() -> None:
    arrived = OutcomeStatus.ARRIVED
    own = Outcome(agent="a", status=arrived, valid=True, in_time=True, used=True, tau_ms=1)
    bad = Outcome(agent="b", status=OutcomeStatus.REJECTED, tau_ms=10, reason="non_finite")
    stranger = Outcome(agent="c", status=arrived, valid=True, in_time=True, tau_ms=1)
    again = Outcome(agent="a", status=OutcomeStatus.REJECTED)
    settled, odd = _ended(own, bad, stranger, again)
    assert odd == {"outcome_odd": 2}
    assert settled.spent_micro == 100
    assert settled.feedback.X.tolist() == [True, False]
    assert settled.details.reason == ("", "non_finite")
