"""What devices get once: an edge fetches it after the welcome, keeps it, and hands it on."""

from pathlib import Path

import pytest

from fedagent_protocol import messages as m
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_protocol.transfer import Layout
from fedagent_task.recipe.spec import ModelSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes

from .harness import RUN, Field, ToyAgent, model_tensors

ONCE = encode_tensors(model_tensors(600_000))
DIGEST = digest_of(ONCE)
LAYOUT = Layout(len(ONCE), m.CHUNK_BYTES)
MODEL = ModelSpec(kind="softmax", features=4, classes=2, once=DIGEST, once_bytes=len(ONCE))
BODY = task_bytes(TaskSpec(model=MODEL))
TASK = digest_of(BODY)
PIECE = 64 * 1024


@pytest.fixture
def field(tmp_path: Path) -> Field:
    agents = {f"a{i}": ToyAgent(f"a{i}") for i in range(3)}
    field = Field(tmp_path, agents, chunk_bytes=PIECE)
    welcome(field)
    for agent in agents.values():
        agent.hello(field)
    field.run_for(0.1)
    return field


def welcome(field: Field) -> None:
    field.coordinator(m.EdgeWelcome(run=RUN, coordinator="coord", task=TASK, body=BODY))


def asked(field: Field, digest: str = DIGEST) -> list[int]:
    needs = [one for one in field.to_coordinator if isinstance(one, m.Need)]
    ranges = [span for need in needs if need.digest == digest for span in need.ranges]
    return [index for start, stop in ranges for index in range(start, stop)]


def give(field: Field, *, damage: int | None = None) -> None:
    """Be the coordinator: send what is asked for, each chunk once."""
    sent: set[int] = set()
    while len(sent) < LAYOUT.count:
        for index in sorted(set(asked(field)) - sent):
            start, stop = LAYOUT.span(index)
            data = bytes(stop - start) if index == damage else ONCE[start:stop]
            field.coordinator(m.Chunk(run=RUN, digest=DIGEST, index=index, data=data))
            sent.add(index)
        field.run_for(0.05)


def need(field: Field, agent: str, *ranges: tuple[int, int]) -> None:
    field.to_edge(agent, m.Need(run=RUN, digest=DIGEST, ranges=ranges))
    field.run_for(1.0)


def chunks(field: Field, agent: str) -> list[m.Chunk]:
    heard = [one for one in field.agents[agent].heard if isinstance(one, m.Chunk)]
    return [one for one in heard if one.digest == DIGEST]


def test_agents_that_ask_early_get_it_when_it_is_there_in_the_edges_chunks(field: Field) -> None:
    need(field, "a0", (0, 4))
    need(field, "a1", (0, 4))
    assert not chunks(field, "a0")
    give(field)
    field.run_for(3.0)
    got = chunks(field, "a0")
    assert [one.index for one in got] == [0], "in one message"
    assert b"".join(one.data for one in got) == ONCE[: 4 * PIECE]
    assert chunks(field, "a1") == got


def test_it_outlives_a_restart_and_many_models(field: Field) -> None:
    give(field)
    for mark in range(6):
        field.model = encode_tensors(model_tensors(64 + 4 * mark))
        field.digest = digest_of(field.model)
        field.give_model()
    field.to_coordinator.clear()
    field.open()
    welcome(field)
    assert not asked(field)
    need(field, "a0", (0, 1))
    assert chunks(field, "a0")[-1].data == ONCE[:PIECE]


def test_one_that_is_not_what_it_is_called_is_got_again(field: Field) -> None:
    give(field, damage=1)
    assert "cannot be used" in field.notes[-1].text
    field.to_coordinator.clear()
    field.run_for(6.0)
    give(field)
    assert (field.directory / "models" / DIGEST).read_bytes() == ONCE
