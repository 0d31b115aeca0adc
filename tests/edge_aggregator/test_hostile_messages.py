"""Whatever decodes as a message of an agent or coordinator, the edge neither raises nor strays."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.inspect import BoolType, BytesType, FloatType, IntType, StrType, type_info

from fedagent_edge.core.sessions import ANSWER_S
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import digest_of, encode_tensors

from .harness import RUN, TASK, Field, ToyAgent, expected_mean

AGENT_KINDS = m.AgentToEdge.__args__
COORDINATOR_KINDS = m.CoordinatorToEdge.__args__
BY_TYPE: dict[type, list[Any]] = {
    IntType: [0, 1, 2, 700, 16_384, 2**52],
    FloatType: [0.0, 0.5, 1.0],
    BoolType: [False, True],
    BytesType: [b"", b"x", bytes(700)],
    StrType: ["", "x", "a0", "coord", "busy", "report", "1" * 32],
}


def _draw(data: st.DataObject, kinds: tuple[type[m.Message], ...], field: Field) -> bytes:
    """Return a message whose fields are likely to meet the edge's state, or not."""
    kind = data.draw(st.sampled_from(kinds))
    by_name: dict[str, list[Any]] = {
        "run": [RUN, RUN, "9" * 32],
        "round": [0, 1, 2, 2**52],
        **{key: [field.digest, TASK, "f" * 64] for key in ("digest", "base", "task", "model")},
        "ranges": [[], [[0, 1]], [[0, 65_536]], [[5, 2]]],
        "body": [b"task"],
        "features": [{}, {"compute": 1e308}],
        "assignments": [[], [{"agent": "x"}, {"agent": "a0"}, {"agent": "x"}]],
        "stats": [{"num_samples": n} for n in (0, 1, 2**52)],
        "trained": [[], ["a0"]],
    }
    fields: dict[str, Any] = {}
    for one in type_info(kind).fields:  # type: ignore[attr-defined]  # of a struct
        values = by_name.get(one.encode_name) or BY_TYPE.get(type(one.type), [])
        if values and data.draw(st.sampled_from([True, True, True, False])):
            fields[one.encode_name] = data.draw(st.sampled_from(values), label=one.encode_name)
    return msgspec.msgpack.encode({"t": kind.__struct_config__.tag, **fields})


def _field(directory: Path) -> Field:
    return Field(directory, {"a0": ToyAgent("a0"), "a1": ToyAgent("a1")}).ready()


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_a_hostile_agent_hurts_only_itself(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    field = _field(tmp_path_factory.mktemp("edge"))
    chosen = tuple(m.Assignment(agent=a) for a in ("a0", "a1", "x"))
    field.to_edge("x", m.Hello())
    field.run_for(0.1)
    mode = data.draw(st.sampled_from([None, *m.OpinionMode]))
    field.order(assignments=chosen, deadline_ms=2000, max_wait_ms=4000)
    if mode is not None:
        # Not as it is in a run, where a call is between two rounds: both go on at once.
        ask = m.OpinionOpen(run=RUN, round=1, model=field.digest, until_ms=1000, mode=mode)
        field.coordinator(ask)
    for _ in range(data.draw(st.integers(1, 25))):
        try:
            message = decode(Direction.AGENT_TO_EDGE, _draw(data, AGENT_KINDS, field))
        except ProtocolError:
            continue
        field.to_edge("x", message)
        field.run_for(data.draw(st.sampled_from([0.0, 0.02, 0.3])))
    report = field.run_until_report()
    by_agent = {o.agent: o for o in report.outcomes}
    assert by_agent["a0"].used
    assert by_agent["a1"].used
    assert not by_agent["x"].used
    weights = {"a0": 10.0, "a1": 10.0}
    assert report.model == digest_of(encode_tensors(expected_mean(64, weights)))
    assert field.core.rounds.updates.uploads.pool.used_bytes == 0
    if mode is m.OpinionMode.REPORT:
        field.run_for(1.0)
        told = [x for x in field.to_coordinator if isinstance(x, m.Opinions)]
        assert told, "no opinion of an agent keeps the others' from being told"
        assert all(sum(x.reasons.values()) + len(x.session) // 4 == x.asked for x in told)
    assert not list((field.directory / "spool").glob("*.update"))


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_message_of_a_coordinator_makes_the_edge_fall(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    field = _field(tmp_path_factory.mktemp("edge"))
    left = False
    for _ in range(data.draw(st.integers(1, 25))):
        try:
            message = decode(Direction.COORDINATOR_TO_EDGE, _draw(data, COORDINATOR_KINDS, field))
        except ProtocolError:
            continue
        sender = data.draw(st.sampled_from(["", "coord", "rival"]))
        field.coordinator(message, sender=sender)
        field.run_for(data.draw(st.sampled_from([0.0, 0.02, 0.6])))
        left = left or (field.core.memory.run, field.core.memory.task) != (RUN, TASK)
    if left:
        # A run that was left and came back begins anew.
        return
    rounds = [r.round for r in field.reports]
    assert rounds == sorted(rounds)
    for number in set(rounds):
        said = {(r.model, r.failed) for r in field.reports if r.round == number}
        assert len(said) == 1, "a round that is reported twice says the same"


def test_a_lie_that_a_device_is_gone_costs_one_question_and_the_truth_no_round(
    tmp_path: Path,
) -> None:
    field = _field(tmp_path)
    field.agents["a1"].silent = True
    for _ in range(3):
        for agent in ("a0", "a1", "nobody"):
            field.to_edge(agent, m.Gone())
    field.run_for(ANSWER_S + 1.0)
    assert sum(isinstance(one, m.Probe) for one in field.agents["a0"].heard) <= 3
    away = [event.fields["agent"] for event in field.events if event.name == "agent_away"]
    assert away == ["a1"]
    here = {note.agent: note.here for note in field.core.sessions.changed_devices(field.now)}
    assert "nobody" not in here
    field.agents["a1"].silent = False
    field.order()
    field.run_until_report()
    assert field.core.sessions.is_present("a1")
