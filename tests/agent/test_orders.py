"""Orders: who is obeyed, who is refused and why, that nothing is trained twice, and load limits."""

from pathlib import Path

import pytest

from fedagent_agent.core.device import PriceSettings, Readings
from fedagent_agent.core.effects import TrainerEnded
from fedagent_agent.trainer.frames import Cancel, Failed, Open, Train
from fedagent_protocol import messages as m
from fedagent_task.recipe.text import task_bytes, task_digest
from tests.fakes.hand_edge import EDGE, REAL, RUN, HandEdge, digest_of, joined, model_of

MODEL = model_of(3000)


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    return joined(tmp_path)


@pytest.fixture
def trainee(tmp_path: Path) -> HandEdge:
    """An agent whose task needs a trainer."""
    return joined(tmp_path, task=REAL)


def start(edge: HandEdge, number: int, *, give_up_ms: int = 20_000) -> Train:
    """Order a round and go as far as the training."""
    edge.serve(edge.order(number, MODEL, give_up_ms=give_up_ms), MODEL)
    return edge.jobs(Train)[-1]


def reasons(edge: HandEdge) -> list[tuple[int, m.DeclineReason]]:
    return [(decline.round, decline.reason) for decline in edge.said(m.Decline)]


def test_a_model_that_is_here_is_not_fetched_again(edge: HandEdge) -> None:
    edge.round(1, MODEL)
    needs = [need for need in edge.said(m.Need) if need.ranges]
    edge.serve(edge.order(2, MODEL), MODEL)
    assert [need for need in edge.said(m.Need) if need.ranges] == needs
    assert edge.said(m.UpdateOffer)[-1].round == 2
    assert len(edge.said(m.TaskNeed)) == 1, "nor is the task"


def test_an_edge_that_orders_again_hears_that_its_order_is_worked_on(trainee: HandEdge) -> None:
    start(trainee, 1)
    for _ in range(2):  # its answer was lost, or it was restarted
        before = len(trainee.said(m.Need))
        trainee.order(1, MODEL)
        assert [need.ranges for need in trainee.said(m.Need)[before:]] == [()]
    assert len(trainee.jobs(Train)) == 1


def test_the_same_order_after_a_refusal_repeats_the_refusal(tmp_path: Path) -> None:
    edge = joined(tmp_path)
    edge.measure(Readings(available=False, reason="on battery"))
    edge.order(1, MODEL)
    edge.measure(Readings())
    edge.order(1, MODEL)
    assert reasons(edge) == [(1, m.DeclineReason.UNAVAILABLE)] * 2
    assert edge.said(m.Decline)[0].detail == "on battery"


@pytest.mark.parametrize("restarted", [False, True])
def test_an_edge_that_forgot_what_it_had_refused_is_told_not_to_wait(
    trainee: HandEdge, restarted: bool
) -> None:
    trainee.train(start(trainee, 1), b"update of round one")
    trainee.receipt(trainee.said(m.UpdateOffer)[-1], m.ReceiptStatus.REJECTED)
    assert not reasons(trainee)
    if restarted:
        trainee.restart(EDGE)
    trainee.order(1, MODEL)
    assert reasons(trainee) == [(1, m.DeclineReason.BUSY)]
    assert len(trainee.jobs(Train)) == (not restarted), "it never trains twice"


def test_an_order_older_than_one_before_is_not_trained(trainee: HandEdge) -> None:
    trainee.train(start(trainee, 2), b"update of round two")
    trainee.receipt(trainee.said(m.UpdateOffer)[-1], m.ReceiptStatus.ACCEPTED)
    trainee.serve(trainee.order(1, MODEL), MODEL)
    assert reasons(trainee) == [(1, m.DeclineReason.BUSY)]
    assert len(trainee.jobs(Train)) == 1


def test_a_newer_order_cancels_older_work_and_says_so(trainee: HandEdge) -> None:
    job = start(trainee, 1).job
    trainee.serve(trainee.order(2, MODEL), MODEL)
    assert trainee.jobs(Cancel) == [Cancel(job=job)]
    assert reasons(trainee) == [(1, m.DeclineReason.BUSY)]
    trainee.take(Failed(job=job, reason="cancelled"))
    assert reasons(trainee) == [(1, m.DeclineReason.BUSY)]
    trainee.train(trainee.jobs(Train)[-1], b"update of round two")
    assert [offer.round for offer in trainee.said(m.UpdateOffer)] == [2]


@pytest.mark.parametrize(
    ("offered", "stale"), [(1_000_000, True), (1_363_000, True), (1_364_000, False)]
)
def test_a_price_that_rose_by_more_than_a_tenth_is_stale(
    tmp_path: Path, offered: int, stale: bool
) -> None:
    edge = joined(tmp_path, price=PriceSettings(base=0.5, per_compute=0.5))
    edge.measure(Readings(compute=2.0))
    edge.order(1, MODEL, price=offered, context_seq=1)
    assert [reason for _, reason in reasons(edge)] == ([m.DeclineReason.STALE] if stale else [])


def test_a_model_of_no_size_is_refused_before_anything_is_fetched(edge: HandEdge) -> None:
    edge.order(1, b"")
    assert reasons(edge) == [(1, m.DeclineReason.LOAD)]
    assert not edge.said(m.TaskNeed)


def test_give_up_stops_the_work_without_an_answer(trainee: HandEdge) -> None:
    job = start(trainee, 1, give_up_ms=2000).job
    trainee.later(2.5)
    assert trainee.jobs(Cancel) == [Cancel(job=job)]
    assert trainee.events("abandoned") == [{"round": 1, "edge": EDGE, "reason": "give_up"}]
    assert not trainee.said(m.Decline)


def test_a_closed_round_stops_training_and_upload(trainee: HandEdge) -> None:
    start(trainee, 1)
    trainee.say(m.RoundClosed(run=RUN, round=1))
    assert len(trainee.jobs(Cancel)) == 1
    trainee.train(start(trainee, 2), b"an update")
    trainee.say(m.RoundClosed(run=RUN, round=2))
    assert not trainee.core.uploads.by_key
    assert [e["reason"] for e in trainee.events("abandoned")] == ["closed", "closed"]


def test_a_stream_that_does_not_fit_names_the_key_and_is_tried_again_later(
    trainee: HandEdge,
) -> None:
    detail = "model.features: task wants 64, the stream has 63"
    trainee.order(1, MODEL)
    body = m.TaskBody(run=RUN, digest=task_digest(task_bytes(REAL)), body=task_bytes(REAL))
    (opening,) = trainee.jobs(Open, trainee.say(body))
    trainee.refused(opening, detail)
    assert [(d.reason, d.detail) for d in trainee.said(m.Decline)] == [
        (m.DeclineReason.SCHEMA, detail)
    ]
    trainee.order(2, MODEL)
    assert reasons(trainee)[-1] == (2, m.DeclineReason.SCHEMA)
    assert len(trainee.jobs(Open)) == 1, "not tried again at once"
    trainee.now += 11.0
    (opening,) = trainee.jobs(Open, trainee.order(3, MODEL))
    trainee.opened(opening)
    trainee.serve(trainee.order(3, MODEL) + trainee.out, MODEL)
    assert trainee.jobs(Train)


@pytest.mark.parametrize(
    ("failure", "reason", "detail"),
    [
        ("no_data", m.DeclineReason.NO_DATA, "so it went"),
        ("memory", m.DeclineReason.LOAD, "memory: so it went"),
        ("died", m.DeclineReason.ERROR, "died: so it went"),
        ("diverged", m.DeclineReason.ERROR, "diverged: so it went"),
    ],
)
def test_a_failed_training_is_an_answer(
    trainee: HandEdge, failure: str, reason: m.DeclineReason, detail: str
) -> None:
    trainee.failed(start(trainee, 1), failure, "so it went")
    assert [(d.reason, d.detail) for d in trainee.said(m.Decline)] == [(reason, detail)]
    assert trainee.core.orders.active is None


def test_a_task_that_is_not_what_it_is_called_is_asked_for_again(edge: HandEdge) -> None:
    edge.order(1, MODEL)
    digest = task_digest(task_bytes(edge.task))
    edge.say(m.TaskBody(run=RUN, digest=digest, body=b"something else"))
    assert edge.core.counters["digest_mismatch"] == 1
    edge.now += 1.1
    edge.serve(edge.say(m.EdgeBeacon(edge=EDGE)), MODEL)
    edge.serve(list(edge.out), MODEL)
    assert edge.said(m.UpdateOffer)


def test_a_task_that_nobody_understands_is_a_misfit(edge: HandEdge) -> None:
    body = b"\x81\xa7version\x01"
    edge.order(1, MODEL, task=digest_of(body))
    edge.say(m.TaskBody(run=RUN, digest=digest_of(body), body=body))
    assert reasons(edge) == [(1, m.DeclineReason.SCHEMA)]


def test_a_slow_device_takes_its_extra_seconds(tmp_path: Path) -> None:
    edge = joined(tmp_path, slow_s=3.0)
    edge.serve(edge.order(1, MODEL), MODEL)
    edge.later(2.9)
    assert not edge.said(m.UpdateOffer)
    edge.later(0.2)
    (offer,) = edge.said(m.UpdateOffer)
    assert 2900 <= offer.stats.lc_ms <= 3200


def test_samples_that_were_not_learnt_from_are_told_when_they_change(trainee: HandEdge) -> None:
    counts = [{}, {"bad_json": 3}, {"bad_json": 3}, {"bad_json": 5, "dropped": 1}]
    for counters in counts:
        trainee.take(Failed(job=99, reason="no_data", counters=counters))
    trainee.take(TrainerEnded())
    trainee.take(Failed(job=99, reason="no_data", counters={"bad_json": 2}))
    told = [event["counters"] for event in trainee.events("samples")]
    assert told == [counts[1], counts[3], {"bad_json": 2}]


EMPTY = Readings(available=False, reason="on battery, at 5%", battery=0.05, temperature_c=41.0)


@pytest.fixture
def limited(tmp_path: Path) -> HandEdge:
    """An agent in training, whose device and task have load limits."""
    edge = joined(tmp_path, task=REAL, load_limit_s=2.0)
    edge.serve(edge.order(1, MODEL, load_limit_ms=1300), MODEL)
    return edge


def features(edge: HandEdge) -> dict[str, float]:
    return edge.said(m.ContextReport)[-1].features


# --------------------------------------------------------------------- abort


def test_an_abort_in_mid_training_withdraws_the_order_once(limited: HandEdge) -> None:
    (job,) = limited.jobs(Train)
    limited.measure(EMPTY)
    assert limited.jobs(Cancel) == [Cancel(job=job.job)]
    (decline,) = limited.said(m.Decline)
    assert (decline.round, decline.reason) == (1, m.DeclineReason.UNAVAILABLE)
    assert decline.detail == "on battery, at 5%"
    limited.measure(EMPTY)
    limited.train(job, b"too late")
    assert len(limited.said(m.Decline)) == 1
    assert not limited.said(m.UpdateOffer)
    assert not Path(job.out).exists()


# --------------------------------------------------------------- load limits


@pytest.mark.parametrize(
    ("device", "task_ms", "limit"), [(2.0, 0, 2.0), (0.0, 1300, 1.3), (1.0, 1300, 1)]
)
def test_the_smaller_of_both_load_limits_counts(
    tmp_path: Path, device: float, task_ms: int, limit: float
) -> None:
    edge = joined(tmp_path, task=REAL, load_limit_s=device)
    edge.serve(edge.order(1, MODEL, load_limit_ms=task_ms), MODEL)
    assert edge.jobs(Train)[0].load_limit_s == limit
    assert features(edge).get("load_limit_s") == (device or None)


def test_what_the_trainer_did_is_offered(limited: HandEdge) -> None:
    stats = m.TrainStats(num_samples=7, iterations=3, arrivals=500, steps=50, limited=True)
    limited.train(limited.jobs(Train)[0], b"an update", stats, train_s=1.2999)
    (offer,) = limited.said(m.UpdateOffer)
    assert (offer.stats.steps, offer.stats.train_ms, offer.stats.limited) == (50, 1300, True)
    # What had gathered before the first training is no measure of arrivals.
    assert "arrivals_per_step" not in features(limited)
    limited.now += 10
    limited.serve(limited.order(2, MODEL), MODEL)
    limited.train(limited.jobs(Train)[-1], b"an update", stats)
    context = limited.said(m.UpdateOffer)[-1].context
    assert context is not None
    assert context.features["arrivals_per_step"] == 10
    assert context.features["arrivals_per_s"] == 50
