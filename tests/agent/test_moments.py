"""An agent tells what its samples add up to: once, to one edge, and never against its owner."""

from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fedagent_agent.core.effects import SubscribeModel
from fedagent_agent.core.opinions import PrivacySettings
from fedagent_agent.core.worklog import WorkLog
from fedagent_agent.trainer.frames import Evaluate, Evaluated
from fedagent_node.effects import Emit
from fedagent_protocol.messages import Opinion, OpinionMode
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import DataSpec
from tests.fakes.hand_edge import OTHER, REAL, HandEdge, joined, model_of

MODEL = model_of(500)
TASK = structs.replace(REAL, data=DataSpec(standardize=True))


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    return joined(tmp_path, OTHER, task=TASK)


def ask(edge: HandEdge, *, name: str = "", until_ms: int = 10_000) -> None:
    mode = OpinionMode.MOMENTS
    edge.serve(edge.call(0, MODEL, edge=name, mode=mode, until_ms=until_ms), MODEL)


def found(edge: HandEdge, samples: int) -> bytes:
    """Be the trainer."""
    start = edge.jobs(Evaluate)[-1]
    assert start.moments
    body = Moments.of(np.ones((samples, 64), np.float32)).encode() if samples else b""
    evaluated = Evaluated(job=start.job, samples=samples, metric="moments", moments=body)
    edge.take(evaluated)
    return body


def test_one_edge_is_told_and_others_that_it_was(edge: HandEdge) -> None:
    ask(edge)
    edge.call(0, MODEL, edge=OTHER, mode=OpinionMode.MOMENTS)
    body = found(edge, 50)
    first, second = edge.said(Opinion)
    assert (first.samples, first.moments, first.score) == (50, body, 0.0)
    assert (second.samples, second.moments, second.reason) == (
        0,
        b"",
        "already sent to another edge",
    )
    ask(edge)
    ask(edge, name=OTHER)
    assert edge.said(Opinion)[2:] == [first, second]
    lines = [
        line
        for data in edge.events("opinion")
        for line in WorkLog().lines_for(Emit("opinion", data), 0)
    ]
    assert [line.text for line in lines] == [
        "sends the statistics of its 50 samples before round 1"
    ]
    assert not edge.jobs(SubscribeModel), "the model is of no use for it"
    assert len(edge.jobs(Evaluate)) == 1


@pytest.mark.parametrize("samples", [29, 0])
def test_sums_of_few_samples_are_never_told(edge: HandEdge, samples: int) -> None:
    ask(edge, until_ms=4000)
    for _ in range(20):
        if edge.said(Opinion):
            break
        found(edge, samples)
        edge.later(0.6)
    (told,) = edge.said(Opinion)
    assert (told.samples, told.moments) == (0, b"")


@pytest.mark.parametrize(
    "limits", [PrivacySettings(declared_only=True), PrivacySettings(max_epsilon=1)]
)
def test_an_owner_that_limits_opinions_gives_no_statistics(
    tmp_path: Path, limits: PrivacySettings
) -> None:
    edge = joined(tmp_path, task=TASK, privacy=limits)
    ask(edge)
    assert (
        edge.said(Opinion)[0].reason
        == "the owner's privacy limits forbid statistics of the samples"
    )
    assert not edge.jobs(Evaluate)
