"""What a task's devices get once: fetched before the stream is opened, kept beside the models."""

from pathlib import Path

import pytest
from msgspec import structs

from fedagent_agent.core.tasks import PREPARE_S
from fedagent_agent.trainer.frames import Open
from fedagent_protocol import messages as m
from fedagent_task.recipe.spec import TaskSpec
from fedagent_task.recipe.text import task_bytes, task_digest
from tests.fakes.graph_tasks import dense_task
from tests.fakes.hand_edge import (
    EDGE,
    OTHER,
    RUN,
    HandEdge,
    digest_of,
    joined,
    model_of,
)

PIECE = 64 * 1024
ONCE = model_of(8 * PIECE + 1000, 3)
COUNT = 9
SMALL = model_of(3000)


def task_with(once: bytes) -> TaskSpec:
    graph = dense_task(frozen=True).model
    return TaskSpec(model=structs.replace(graph, once=digest_of(once), once_bytes=len(once)))


TASK = task_with(ONCE)
BODY = task_bytes(TASK)
DIGEST = task_digest(BODY)


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    return joined(tmp_path, OTHER, chunk_bytes=PIECE, task=TASK)


def named(edge: HandEdge, name: str = EDGE) -> None:
    """Name the task; answer when the agent asks for its body."""
    edge.say(m.EdgeBeacon(run=RUN, edge=name, task=DIGEST), edge=name)
    body(edge, name)


def body(edge: HandEdge, name: str = EDGE) -> None:
    told = m.TaskBody(run=RUN, digest=DIGEST, body=BODY, chunk_bytes=PIECE)
    edge.say(told, edge=name)


def piece(index: int, data: bytes | None = None) -> m.Chunk:
    data = ONCE[index * PIECE : (index + 1) * PIECE] if data is None else data
    return m.Chunk(run=RUN, digest=digest_of(ONCE), index=index, data=data)


def asked(edge: HandEdge) -> list[int]:
    needs = [need for need in edge.said(m.Need) if need.digest == digest_of(ONCE)]
    return [i for need in needs for start, stop in need.ranges for i in range(start, stop)]


def given(edge: HandEdge, *indices: int, name: str = EDGE) -> None:
    for index in indices or range(COUNT):
        edge.say(piece(index), edge=name)


def test_the_stream_is_opened_with_the_file_once_it_is_whole(edge: HandEdge) -> None:
    named(edge)
    assert asked(edge) == [0]
    given(edge, *range(COUNT - 1))
    assert not edge.jobs(Open)
    given(edge, COUNT - 1)
    (job,) = edge.jobs(Open)
    assert Path(job.once).read_bytes() == ONCE


def test_a_damaged_file_is_declined(edge: HandEdge) -> None:
    named(edge)
    given(edge, *range(COUNT - 1))
    edge.say(piece(COUNT - 1, bytes(len(ONCE) - (COUNT - 1) * PIECE)))
    edge.order(1, SMALL)
    (decline,) = edge.said(m.Decline)
    assert (decline.reason, "model.once" in decline.detail) == (m.DeclineReason.LOAD, True)
    assert edge.core.counters["digest_mismatch"] == 1


def test_one_that_is_too_large_is_declined_by_its_key(tmp_path: Path) -> None:
    huge = structs.replace(TASK.model, once_bytes=1 << 40)
    task = structs.replace(TASK, model=huge)
    edge = joined(tmp_path, task=task)
    edge.serve(edge.order(1, SMALL), SMALL)
    (decline,) = edge.said(m.Decline)
    assert (decline.reason, decline.detail[:16]) == (m.DeclineReason.SCHEMA, "model.once_bytes")


def test_while_it_moves_the_agent_is_not_there_to_be_ordered(edge: HandEdge) -> None:
    named(edge)
    for index in range(COUNT - 1):
        edge.now += PREPARE_S * 0.6
        edge.say(m.EdgeBeacon(run=RUN, edge=EDGE, task=DIGEST))
        given(edge, index)
    assert edge.core.device.preparing
    for _ in range(round(PREPARE_S) + 1):
        edge.later(1.0)
        edge.say(m.EdgeBeacon(run=RUN, edge=EDGE, task=DIGEST))
    assert not edge.core.device.preparing


def test_once_it_is_whole_the_stream_has_as_long_to_open_as_without_it(edge: HandEdge) -> None:
    named(edge)
    edge.now += PREPARE_S * 0.9
    given(edge)
    for seconds, preparing in ((PREPARE_S * 0.9, True), (PREPARE_S * 0.2, False)):
        for _ in range(round(seconds)):
            edge.later(1.0)
            edge.say(m.EdgeBeacon(run=RUN, edge=EDGE, task=DIGEST))
        assert edge.core.device.preparing is preparing
