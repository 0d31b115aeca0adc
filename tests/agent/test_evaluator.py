"""Calls for opinions and statistics: what is answered, how often, and what is never told."""

from pathlib import Path
from typing import Literal
from unittest.mock import Mock

import numpy as np
import pytest
from msgspec import structs

from fedagent_agent import books
from fedagent_agent.core.device import Readings
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_agent.core.worklog import WorkLog
from fedagent_agent.trainer.frames import Evaluate, Evaluated, Train
from fedagent_node.effects import Emit, Send
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.messages import Opinion, OpinionMode
from fedagent_protocol.signed import Asked, is_claim
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import DataSpec, OpinionsSpec, PeersSpec
from fedagent_task.recipe.text import task_bytes, task_digest
from tests.fakes.hand_edge import (
    EDGE,
    IDLE,
    OTHER,
    REAL,
    RUN,
    SITE,
    STATS,
    HandEdge,
    call_of,
    digest_of,
    joined,
    model_of,
)
from tests.fakes.voices import identity

MODEL, NEWER = model_of(500), model_of(500, 1)
RUN_2 = "2" * 32
PEERS = m.OpinionMode.PEERS


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    return joined(tmp_path, OTHER, task=REAL)


def with_opinions(folder: Path, limits: PrivacySettings | None = None, **spec: object) -> HandEdge:
    opinions = OpinionsSpec(**spec)  # type: ignore[arg-type]  # by test
    task = structs.replace(REAL, opinions=opinions)
    return joined(folder, OTHER, task=task, privacy=limits or PrivacySettings())


def asked(edge: HandEdge, number: int, model: bytes = MODEL, **fields: object) -> Evaluate:
    """Call, serve what is asked for, and return the scoring."""
    edge.serve(edge.call(number, model, **fields), model)  # type: ignore[arg-type]
    return edge.jobs(Evaluate)[-1]


def test_a_model_is_fetched_scored_and_answered_once_for_all(edge: HandEdge) -> None:
    start = asked(edge, 3)
    assert start.small == MODEL
    assert edge.said(m.Opinion) == []
    edge.evaluate(start, 0.75)
    (opinion,) = edge.said(m.Opinion)
    assert opinion == m.Opinion(
        run=RUN, round=3, model=digest_of(MODEL), score=0.75, samples=7, metric="accuracy"
    )
    assert decode(Direction.AGENT_TO_EDGE, encode(opinion)) == opinion
    for name in (EDGE, OTHER, EDGE):
        edge.call(3, MODEL, edge=name)
    assert edge.said(m.Opinion) == [opinion] * 4
    assert len(edge.jobs(Evaluate)) == len(edge.said(m.TaskNeed)) == 1
    assert "0.75" not in str(edge.events("opinion"))


def test_an_opinion_is_signed_for_what_was_asked_and_kept_so_over_a_restart(
    tmp_path: Path,
) -> None:
    me = identity("device")
    task = structs.replace(REAL, opinions=OpinionsSpec(epsilon=1.0))
    edge = joined(tmp_path, OTHER, task=task, identity=me)
    edge.evaluate(asked(edge, 3), 0.7, epsilon=0.3)
    (opinion,) = edge.said(m.Opinion)
    of = {"run": RUN, "task": task_digest(task_bytes(task)), "model": digest_of(MODEL)}
    said = Asked(site=SITE, round=3, **of).opinion(me.id, opinion)
    assert is_claim(opinion.claim, me.id, said)
    # An edge that makes up another task gets no signature of that.
    call = call_of(task, 3, MODEL, 1024, until_ms=5000)
    edge.say(structs.replace(call, task="c" * 64), edge=OTHER)
    assert edge.said(m.Opinion) == [opinion] * 2
    edge.restart(EDGE)
    edge.call(3, MODEL)
    assert edge.said(m.Opinion) == [opinion]


def test_who_volunteers_signs_it_for_each_edge(tmp_path: Path) -> None:
    me, alone = identity("device"), OpinionsSpec(mode="peers")
    task = structs.replace(REAL, opinions=alone, peers=PeersSpec(graph="declared"))
    edge = joined(tmp_path, OTHER, task=task, identity=me)
    start = asked(edge, 3, mode=PEERS)
    edge.call(3, MODEL, mode=PEERS, edge=OTHER)
    edge.evaluate(start, 0.7)
    edge.later(4.0)
    of = {"run": RUN, "task": task_digest(task_bytes(task)), "model": digest_of(MODEL)}
    said = Asked(site=SITE, round=3, **of)
    sends = [one for one in edge.out if isinstance(one, Send)]
    told = {one.to: one.message.claim for one in sends if isinstance(one.message, m.Volunteer)}
    assert {
        to: is_claim(claim, me.id, said.volunteer(me.id, to)) for to, claim in told.items()
    } == {
        EDGE: True,
        OTHER: True,
    }
    assert edge.said(m.Opinion) == []


def test_a_device_without_an_opinion_says_why(tmp_path: Path, edge: HandEdge) -> None:
    edge.evaluate(asked(edge, 1), samples=0)
    edge.failed(asked(edge, 2), "died")
    late = edge.call(3, NEWER)
    edge.measure(Readings(available=False, reason="battery 4 %"))
    edge.serve(late, NEWER)
    edge.call(4, MODEL)
    idle = joined(tmp_path / "idle", task=IDLE)
    idle.serve(idle.call(1, MODEL), MODEL)
    said = edge.said(m.Opinion) + idle.said(m.Opinion)
    assert [o.reason for o in said] == [
        "no samples have arrived that were not trained on",
        "died",
        "battery 4 %",
        "battery 4 %",
        "the task learns nothing",
    ]
    assert {o.samples for o in said} == {0}


# ------------------------------------------------------------------ who is told


def test_an_edge_that_calls_again_gets_no_opinion_that_was_for_peers(tmp_path: Path) -> None:
    edge = with_opinions(tmp_path, mode="peers")
    edge.evaluate(asked(edge, 1, mode=PEERS), 0.625)
    edge.call(1, MODEL)
    assert edge.said(m.Opinion) == []


@pytest.mark.parametrize(
    ("said", "called"),
    [("peers", "report"), ("report", "peers"), ("off", "report"), ("report", "moments")],
)
def test_an_edge_gets_no_other_opinion_than_the_task_has(
    tmp_path: Path, said: str, called: str
) -> None:
    edge = with_opinions(tmp_path, mode=said)
    edge.serve(edge.call(1, MODEL, mode=m.OpinionMode(called)), MODEL)
    assert not edge.jobs(Evaluate)
    assert all(opinion.samples == 0 for opinion in edge.said(m.Opinion))


# --------------------------------------------------------------------- privacy


@pytest.mark.parametrize("limits", [None, PrivacySettings(total_epsilon=9.0)])
def test_with_limits_no_score_goes_along_with_an_update(
    tmp_path: Path, limits: PrivacySettings | None
) -> None:
    edge = with_opinions(tmp_path, limits)
    edge.serve(edge.order(1, MODEL), MODEL)
    edge.train(edge.jobs(Train)[-1], b"update", structs.replace(STATS, score=0.75, score_n=30))
    (offer,) = edge.said(m.UpdateOffer)
    assert (offer.stats.score, offer.stats.score_n) == ((0.75, 30) if limits is None else (0.0, 0))


@pytest.mark.parametrize(
    ("limits", "epsilon", "reason"),
    [
        (PrivacySettings(max_epsilon=1.0), 0.0, "only with noise"),
        (PrivacySettings(total_epsilon=9.0), 0.0, "only with noise"),
        (PrivacySettings(max_epsilon=1.0), 1.5, "grants epsilon 1 an opinion, not 1.5"),
        (PrivacySettings(total_epsilon=1.0), 1.5, "is used up"),
    ],
)
def test_what_the_owner_does_not_grant_is_not_even_scored(
    tmp_path: Path, limits: PrivacySettings, epsilon: float, reason: str
) -> None:
    edge = with_opinions(tmp_path, limits, epsilon=epsilon)
    edge.serve(edge.call(1, MODEL), MODEL)
    assert not edge.jobs(Evaluate)
    (opinion,) = edge.said(m.Opinion)
    assert opinion.samples == 0
    assert reason in opinion.reason


def test_noise_is_drawn_once_and_stays_spent_over_restarts(tmp_path: Path) -> None:
    limits = PrivacySettings(max_epsilon=1.0, total_epsilon=2.0)
    edge = with_opinions(tmp_path, limits, epsilon=1.0)
    edge.evaluate(asked(edge, 1), 0.31, epsilon=1.0)
    (opinion,) = edge.said(m.Opinion)
    edge.restart(EDGE)
    edge.call(1, MODEL)
    assert edge.said(m.Opinion) == [opinion]
    assert not edge.jobs(Evaluate)
    edge.evaluate(asked(edge, 2), 0.5, epsilon=1.0)
    edge.restart(EDGE)
    edge.serve(edge.call(3, MODEL), MODEL)
    assert not edge.jobs(Evaluate)
    assert "epsilon of 2 for this run is used up" in edge.said(m.Opinion)[-1].reason
    asked(edge, 1, run=RUN_2)
    assert edge.core.evaluator.spent == {RUN: 2.0}


def test_an_edge_that_makes_up_runs_spends_no_more_than_a_life_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(books, "MAX_OPINIONS", 2)
    limits = PrivacySettings(total_epsilon=1.0, lifetime_epsilon=4.0)
    edge = with_opinions(tmp_path, limits, epsilon=1.0)
    runs = [f"{number:032x}" for number in range(5)]
    for run in runs[:4]:
        edge.evaluate(asked(edge, 1, run=run), 0.5, epsilon=1.0)
    assert edge.core.evaluator.ever == 4.0
    edge.restart(EDGE)
    assert edge.core.evaluator.spent == dict.fromkeys(runs[2:4], 1.0)
    for run in (runs[0], runs[4]):
        edge.serve(edge.call(2, MODEL, run=run), MODEL)
        assert "epsilon of 4 for all runs is used up" in edge.said(m.Opinion)[-1].reason
    assert not edge.jobs(Evaluate)


@pytest.mark.parametrize(
    ("mode", "graph", "told"),
    [("report", "near", False), ("peers", "near", False), ("peers", "declared", True)],
)
def test_an_owner_that_trusts_declared_neighbours_alone_tells_nobody_else(
    tmp_path: Path,
    mode: Literal["report", "peers"],
    graph: Literal["near", "declared"],
    told: bool,
) -> None:
    edge = HandEdge(
        tmp_path,
        task=structs.replace(REAL, opinions=OpinionsSpec(mode=mode), peers=PeersSpec(graph=graph)),
        privacy=PrivacySettings(declared_only=True),
    )
    edge.join()
    edge.serve(edge.call(1, MODEL, mode=m.OpinionMode(mode)), MODEL)
    assert bool(edge.jobs(Evaluate)) == told
    for opinion in edge.said(m.Opinion):
        assert (opinion.samples, opinion.reason) == (
            0, "the owner sends opinions to declared neighbours only"
        )  # fmt: skip
    assert bool(edge.said(m.Opinion)) == (mode == "report")


@pytest.mark.parametrize("ends", ["refused", "killed"])
def test_what_is_not_on_disk_is_not_told(tmp_path: Path, ends: str) -> None:
    edge = with_opinions(tmp_path, epsilon=1.0)
    start = asked(edge, 1)
    if ends == "refused":
        edge.store.books._db.execute("PRAGMA query_only = ON")
        edge.evaluate(start, 0.5, epsilon=1.0)
        (opinion,) = edge.said(m.Opinion)
        assert (opinion.samples, opinion.reason[:6]) == (0, "disk: ")
    else:
        killed = KeyboardInterrupt("agent.opinions.before-write")
        edge.store.books._checkpoint = Mock(side_effect=killed)
        with pytest.raises(KeyboardInterrupt):
            edge.evaluate(start, 0.5, epsilon=1.0)
        assert edge.said(m.Opinion) == []
    edge.restart(EDGE)
    assert edge.core.evaluator.spent == {}
    edge.evaluate(asked(edge, 2), 0.25, epsilon=1.0)
    assert [opinion.score for opinion in edge.said(m.Opinion)] == [0.25]


SUMMED = structs.replace(REAL, data=DataSpec(standardize=True))


@pytest.fixture
def summed(tmp_path: Path) -> HandEdge:
    return joined(tmp_path, OTHER, task=SUMMED)


def ask_moments(edge: HandEdge, *, name: str = "", until_ms: int = 10_000) -> None:
    mode = OpinionMode.MOMENTS
    edge.serve(edge.call(0, MODEL, edge=name, mode=mode, until_ms=until_ms), MODEL)


def found_moments(edge: HandEdge, samples: int) -> bytes:
    """Be the trainer."""
    start = edge.jobs(Evaluate)[-1]
    assert start.moments
    body = Moments.of(np.ones((samples, 64), np.float32)).encode() if samples else b""
    evaluated = Evaluated(job=start.job, samples=samples, metric="moments", moments=body)
    edge.take(evaluated)
    return body


def test_one_edge_is_told_and_others_that_it_was(summed: HandEdge) -> None:
    ask_moments(summed)
    summed.call(0, MODEL, edge=OTHER, mode=OpinionMode.MOMENTS)
    body = found_moments(summed, 50)
    first, second = summed.said(Opinion)
    assert (first.samples, first.moments, first.score) == (50, body, 0.0)
    assert (second.samples, second.moments, second.reason) == (
        0,
        b"",
        "already sent to another edge",
    )
    ask_moments(summed)
    ask_moments(summed, name=OTHER)
    assert summed.said(Opinion)[2:] == [first, second]
    lines = [
        line
        for data in summed.events("opinion")
        for line in WorkLog().lines_for(Emit("opinion", data), 0)
    ]
    assert [line.text for line in lines] == [
        "sends the statistics of its 50 samples before round 1"
    ]
    assert not summed.said(m.Need), "the model is of no use for it"
    assert len(summed.jobs(Evaluate)) == 1


@pytest.mark.parametrize("samples", [29, 0])
def test_sums_of_few_samples_are_never_told(summed: HandEdge, samples: int) -> None:
    ask_moments(summed, until_ms=4000)
    for _ in range(20):
        if summed.said(Opinion):
            break
        found_moments(summed, samples)
        summed.later(0.6)
    (told,) = summed.said(Opinion)
    assert (told.samples, told.moments) == (0, b"")


@pytest.mark.parametrize(
    "limits", [PrivacySettings(declared_only=True), PrivacySettings(max_epsilon=1)]
)
def test_an_owner_that_limits_opinions_gives_no_statistics(
    tmp_path: Path, limits: PrivacySettings
) -> None:
    edge = joined(tmp_path, task=SUMMED, privacy=limits)
    ask_moments(edge)
    assert (
        edge.said(Opinion)[0].reason
        == "the owner's privacy limits forbid statistics of the samples"
    )
    assert not edge.jobs(Evaluate)
