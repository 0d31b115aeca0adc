"""An authentic peer whose memory is damaged: whatever it says, restart and welcome heal it."""

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_protocol import messages as m

from .harness import RUN, TASK, Field, ToyAgent

LAST = 2**53 - 1
FARTHEST = 2**62
number = st.one_of(st.integers(0, 30), st.sampled_from([m.MAX_ROUNDS_AHEAD, LAST - 1, LAST]))
said_by_the_coordinator = st.one_of(
    st.builds(m.RoundOpen, run=st.just(RUN), round=number, known=number),
    st.builds(
        m.RoundOrder,
        run=st.just(RUN),
        round=number,
        task=st.just(TASK),
        assignments=st.just((m.Assignment(agent="a"),)),
        deadline_ms=st.integers(0, 10_000),
        max_wait_ms=st.integers(0, 20_000),
        min_updates=number,
        want_model=st.booleans(),
    ),
    st.builds(m.ReportReceipt, run=st.just(RUN), round=number),
)
said_by_the_agent = st.one_of(
    st.builds(
        m.ContextReport,
        seq=st.one_of(st.integers(0, 9), st.just(FARTHEST), st.integers(0, FARTHEST)),
        available=st.booleans(),
        price=st.integers(0, 9),
    ),
    st.builds(m.Decline, run=st.just(RUN), round=number, reason=st.sampled_from(m.DeclineReason)),
    st.builds(m.Bye),
    st.builds(m.Hello, agent=st.sampled_from(["a", "b"])),
)


def field_of(directory: str, *agents: str) -> Field:
    field = Field(Path(directory), {name: ToyAgent(name) for name in agents})
    return field.ready()


def heal(field: Field, round_: int) -> None:
    """Restart the coordinator: it welcomes the edge, and says where it is."""
    welcome = m.EdgeWelcome(run=RUN, round=round_, coordinator="coord", task=TASK, body=field.body)
    field.coordinator(welcome)
    field.run_for(0.2)


@settings(max_examples=60, deadline=None)
@given(st.lists(said_by_the_coordinator, max_size=6))
@example([m.RoundOpen(run=RUN, round=LAST)])
def test_after_a_welcome_the_next_honest_round_is_done(said: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        field = field_of(folder, "a")
        for message in said:
            field.coordinator(message)
            field.run_for(0.1)
        heal(field, 31)
        agent = field.agents["a"]
        field.coordinator(m.RoundOpen(run=RUN, round=31))
        field.order(31)
        field.run_for(25.0)
        assert [report.round for report in field.reports][-1] == 31
        assert field.reports[-1].used == 1
        assert agent.receipts[-1].round == 31


def test_an_order_of_the_last_round_of_all_is_refused_and_said() -> None:
    with tempfile.TemporaryDirectory() as folder:
        field = field_of(folder, "a")
        field.order(LAST)
        field.coordinator(m.RoundOpen(run=RUN, round=LAST))
        assert field.core.counters["round_too_far"] == 2
        assert "far beyond the last one" in field.notes[-1].text
        field.order(1)
        field.run_for(1.0)
        assert field.reports[-1].used == 1, "without a restart"


def test_a_coordinator_that_is_far_ahead_is_asked_for_a_welcome_and_followed() -> None:
    with tempfile.TemporaryDirectory() as folder:
        field = field_of(folder, "a")
        field.run_for(10.0)
        far = m.MAX_ROUNDS_AHEAD + 100
        field.coordinator(m.RoundOpen(run=RUN, round=far))
        assert isinstance(field.to_coordinator[-1], m.EdgeHello)
        heal(field, far)
        field.order(far)
        field.run_for(1.0)
        assert field.reports[-1].round == far


def test_a_smaller_jump_is_healed_when_the_next_order_shows_it() -> None:
    with tempfile.TemporaryDirectory() as folder:
        field = field_of(folder, "a")
        field.order(900, deadline_ms=10, max_wait_ms=20)
        field.run_for(2.0)
        field.order(5)
        hello = field.to_coordinator[-1]
        assert isinstance(hello, m.EdgeHello), "it asks where the coordinator is"
        heal(field, 5)
        assert any("the coordinator is at 5" in note.text for note in field.notes)
        field.order(5)
        field.run_for(2.0)
        assert (field.reports[-1].round, field.reports[-1].used) == (5, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(said_by_the_agent, max_size=8))
@example([m.ContextReport(seq=FARTHEST, available=False, price=0)])
def test_a_device_that_restarts_is_heard(said: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        field = field_of(folder, "a", "b")
        for message in said:
            field.to_edge("a", message)
        field.run_for(0.2)
        report = m.ContextReport(seq=5, available=True, price=3)
        for message in (m.Hello(agent="a"), report):
            field.to_edge("a", message)
        field.run_for(0.2)
        session = field.core.sessions.hear("a", field.now)[0]
        assert session is not None
        assert session.context == report
        field.order(1)
        field.run_for(25.0)
        assert field.reports[-1].used == 2


def test_a_report_far_ahead_is_refused_and_said() -> None:
    with tempfile.TemporaryDirectory() as folder:
        field = field_of(folder, "a")
        before = field.core.sessions.hear("a", field.now)[0]
        assert before is not None
        assert before.context is not None
        far = structs.replace(before.context, seq=FARTHEST, available=False)
        field.to_edge("a", far)
        field.run_for(0.1)
        assert before.context.available
        assert field.core.counters["context_too_far"] == 1
        assert "far beyond the last one" in field.notes[-1].text
