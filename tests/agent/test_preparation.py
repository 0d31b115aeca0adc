"""The task that an edge names is opened before the first order; nothing is promised earlier."""

from pathlib import Path

import pytest

from fedagent_agent.core.device import PREPARING
from fedagent_agent.core.tasks import PREPARE_S
from fedagent_agent.trainer.frames import Open, Train
from fedagent_protocol import messages as m
from fedagent_task.recipe.spec import ModelSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes, task_digest
from tests.fakes.hand_edge import EDGE, OTHER, REAL, RUN, HandEdge, model_of

MODEL = model_of(3000)
BODY = task_bytes(REAL)
TASK = task_digest(BODY)
OTHER_BODY = task_bytes(TaskSpec(model=ModelSpec(kind="softmax", features=8, classes=3)))
OTHER_TASK = task_digest(OTHER_BODY)


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    """An agent that has heard of an edge, and said hello."""
    edge = HandEdge(tmp_path, task=REAL)
    edge.say(m.EdgeBeacon(edge=EDGE))
    return edge


def body(edge: HandEdge, task: bytes = BODY) -> Open:
    edge.say(m.TaskBody(run=RUN, digest=task_digest(task), body=task))
    return edge.jobs(Open)[-1]


def reports(edge: HandEdge) -> list[tuple[bool, str]]:
    return [(said.available, said.reason) for said in edge.said(m.ContextReport)]


def test_the_stream_is_open_before_the_agent_says_that_it_is_available(edge: HandEdge) -> None:
    edge.say(m.Welcome(run=RUN, edge=EDGE, task=TASK))
    assert [(need.round, need.digest) for need in edge.said(m.TaskNeed)] == [(0, TASK)]
    assert reports(edge) == [(False, PREPARING)]
    opening = body(edge)
    edge.now += 4.0
    edge.opened(opening)
    assert reports(edge) == [(False, PREPARING), (True, "")]
    edge.serve(edge.order(1, MODEL), MODEL)
    assert len(edge.said(m.TaskNeed)) == len(edge.jobs(Open)) == 1, "nothing is left to prepare"
    edge.train(edge.jobs(Train)[-1], b"x" * 3000)
    assert edge.said(m.UpdateOffer)[-1].stats.prepare_ms == 0


def test_an_order_that_comes_first_is_taken_and_says_how_long_the_start_took(
    edge: HandEdge,
) -> None:
    edge.say(m.Welcome(run=RUN, edge=EDGE, task=TASK))
    opening = body(edge)
    edge.serve(edge.order(1, MODEL), MODEL)
    assert not edge.jobs(Train)
    edge.now += 0.7
    edge.opened(opening)
    edge.now += 0.1
    edge.train(edge.jobs(Train)[-1], b"x" * 3000)
    stats = edge.said(m.UpdateOffer)[-1].stats
    assert (stats.prepare_ms, stats.lc_ms) == (700, 100)


@pytest.mark.parametrize("ends", ["refused", "never"])
def test_what_cannot_be_prepared_is_found_out_by_an_order(edge: HandEdge, ends: str) -> None:
    edge.say(m.Welcome(run=RUN, edge=EDGE, task=TASK))
    if ends == "refused":
        edge.refused(body(edge), "4 features")
    else:
        for _ in range(round(PREPARE_S)):
            assert reports(edge)[-1] == (False, PREPARING)
            edge.later(1.0)
            edge.say(m.EdgeBeacon(run=RUN, edge=EDGE, task=TASK))
        # What is lost is asked for at a beacon, once in a second at most.
        assert len(edge.said(m.TaskNeed)) >= round(PREPARE_S) // 2
    assert reports(edge)[-1] == (True, "")


def test_a_task_that_is_named_later_is_prepared_at_the_beacon_and_reported_to_all(
    edge: HandEdge,
) -> None:
    edge.join()
    edge.join(edge=OTHER)
    assert reports(edge) == [(True, ""), (True, "")]
    edge.say(m.EdgeBeacon(run=RUN, edge=EDGE, task=TASK))
    assert reports(edge)[2:] == [(False, PREPARING)] * 2
    edge.opened(body(edge))
    assert reports(edge)[4:] == [(True, "")] * 2
    # The second edge of the run hears that all is ready; a third task does not close this one.
    edge.say(m.EdgeBeacon(run=RUN, edge=OTHER, task=TASK), edge=OTHER)
    edge.say(m.EdgeBeacon(run="2" * 32, edge=OTHER, task=OTHER_TASK), edge=OTHER)
    assert reports(edge)[6:] == [(True, ""), (True, "")]
    assert len(edge.said(m.TaskNeed)) == 1
