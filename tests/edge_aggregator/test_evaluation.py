"""A call for opinions at one edge: who is asked, what counts, and that it always ends."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_edge.core.effects import LAN
from fedagent_node.effects import LinkUp
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.signed import Asked
from tests.fakes.voices import identity

from .evaluators import MODEL, OTHER, RUN, Hall, column, scores


def _hall(*agents: str, **facts: object) -> Hall:
    hall = Hall(**facts)  # type: ignore[arg-type]  # a test's own facts
    hall.hello(*agents)
    return hall


def test_all_present_agents_are_called_and_their_answers_go_up_together() -> None:
    hall = _hall("a0", "a1")
    hall.open(slot=3)
    call = hall.down("a1", m.OpinionCall)[0]
    assert (call.run, call.round, call.model, call.size) == (RUN, 1, MODEL, 700)
    assert (call.until_ms, call.slot, call.mode) == (5000, 3, "report")
    hall.opinion("a1", 0.25)
    assert not hall.up(m.Opinions)
    hall.opinion("a0", 0.75, samples=4, epsilon=2.0)
    [told] = hall.up(m.Opinions)
    assert scores(told) == {"a0": 0.75, "a1": 0.25}
    assert column(told, "samples") == [4, 10]
    assert column(told, "epsilon") == [2.0, 0.0]
    assert (told.model, told.metric, told.asked, told.reasons) == (MODEL, "accuracy", 2, {})
    assert decode(Direction.EDGE_TO_COORDINATOR, encode(told)) == told


def test_the_answer_is_repeated_until_its_receipt_and_says_the_same() -> None:
    hall = _hall("a0")
    hall.open()
    hall.opinion("a0")
    hall.wait(3.5)
    assert len(hall.up(m.Opinions)) == 4
    assert hall.up(m.Opinions)[0].epsilon == b""
    hall.open()
    hall.tell(m.OpinionsReceipt(run=RUN, round=1))
    hall.wait(10)
    assert len(hall.up(m.Opinions)) == 5
    assert len({encode(one) for one in hall.up(m.Opinions)}) == 1
    hall.open()
    assert len(hall.up(m.Opinions)) == 6, "a coordinator that asks has no answer"


@pytest.mark.parametrize("mode", ["report", "peers"])
def test_what_agents_signed_goes_up_and_what_they_did_not_is_refused(mode: str) -> None:
    """The coordinator would take it for the edge's own work."""
    hall, (signs, lies, old) = Hall(), [identity(name) for name in ("signs", "lies", "old")]
    hall.hello(signs.id, lies.id, old.id)
    hall.open(1, mode=mode)
    site = hall.core.state.config.site
    asked = Asked(site=site, run=RUN, round=1, task="f" * 64, model=MODEL)
    for me in (signs, lies, old):
        earlier = structs.replace(asked, round=0) if me is lies else asked
        said = m.Opinion(run=RUN, round=1, model=MODEL, score=0.7, samples=10, metric="accuracy")
        volunteer = m.Volunteer(run=RUN, round=1)
        report = mode == "report"
        data = earlier.opinion(me.id, said) if report else earlier.volunteer(me.id, "edge")
        claim = b"" if me is old else me.public_bytes + me.sign(data)
        hall.say(me.id, structs.replace(said if report else volunteer, claim=claim))
    hall.wait(6.0)
    up: list[m.Opinions | m.Volunteers] = [*hall.up(m.Opinions), *hall.up(m.Volunteers)]
    told = up[-1]
    ids = [told.new_ids[int(index)] for index in column(told, "session")]
    claims = [told.claim[96 * row : 96 * row + 96] for row in range(len(ids))]
    assert set(ids) == {signs.id, old.id}
    assert dict(zip(ids, map(any, claims), strict=True)) == {signs.id: True, old.id: False}
    kind = "opinion" if mode == "report" else "volunteer"
    assert hall.core.counters[f"{kind}_unsigned"] == 1


def test_an_edge_that_has_just_started_waits_for_its_agents() -> None:
    hall = Hall()
    hall.effects += hall.core.receive(LinkUp(LAN), hall.now)
    hall.open()
    assert not hall.up(m.Opinions)
    hall.wait(0.6)
    hall.hello("a0")
    hall.opinion("a0")
    assert not hall.up(m.Opinions)
    hall.wait(1.5)
    assert len(scores(hall.up(m.Opinions)[0])) == 1
    empty = Hall()
    empty.open()
    assert empty.up(m.Opinions)[0].asked == 0


@pytest.mark.parametrize("end", ["close", "order", "later", "ended"])
def test_what_ends_a_call(end: str) -> None:
    hall = _hall("a0")
    hall.open(1)
    order = m.RoundOrder(
        run=RUN, round=2, task="f" * 64, assignments=(), deadline_ms=10, max_wait_ms=10
    )
    ends: dict[str, m.CoordinatorToEdge] = {
        "close": m.OpinionClose(run=RUN, round=1),
        "order": order,
        "later": m.OpinionOpen(run=RUN, round=2, model=OTHER, until_ms=5000),
        "ended": m.RunEnded(run=RUN),
    }
    hall.tell(ends[end])
    hall.opinion("a0")
    hall.wait(2)
    assert [one for one in hall.up(m.Opinions) if one.round == 1] == []
    assert len(hall.down("a0", m.OpinionCall)) == 1
    assert hall.core.counters["opinion_late"] == 1
    if end != "ended":
        hall.open(1)
        assert hall.core.counters["opinion_open_old"] == 1


AGENTS = ("a0", "a1", "a2")
_event = st.one_of(
    st.tuples(st.just("hello"), st.sampled_from(AGENTS)),
    st.tuples(st.just("bye"), st.sampled_from(AGENTS)),
    st.tuples(
        st.just("opinion"),
        st.sampled_from(AGENTS),
        st.sampled_from([0.0, 0.25, 0.5, 1.0, 7.0]),
        st.sampled_from([MODEL, MODEL, OTHER]),
        st.sampled_from([1, 1, 2]),
        st.sampled_from([0, 5]),
        st.sampled_from(["accuracy", "accuracy", "r2"]),
    ),
    st.tuples(st.just("open"), st.sampled_from([1000, 3000])),
    st.tuples(st.just("receipt")),
    st.tuples(st.just("close")),
    st.tuples(st.just("need"), st.sampled_from(AGENTS)),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.3, 1.0, 2.0])),
)


@settings(max_examples=80, deadline=None)
@given(events=st.lists(_event, max_size=30))
def test_in_any_order_of_events_first_answers_in_time_are_told_and_never_change(
    events: list[tuple[Any, ...]],
) -> None:
    hall = Hall()
    hall.hello("a0", "a1")
    hall.open(until_ms=3000)
    began, closed = hall.now, False
    first: dict[str, tuple[float, int, str]] = {}
    for event in events:
        match event:
            case ("hello", agent):
                hall.hello(agent)
            case ("bye", agent):
                hall.say(agent, m.Bye())
            case ("opinion", agent, score, model, number, samples, metric):
                if not hall.up(m.Opinions) and not closed and (model, number) == (MODEL, 1):
                    first.setdefault(agent, (score, samples, metric))
                hall.opinion(
                    agent, score, model=model, round=number, samples=samples, metric=metric
                )
            case ("open", until):
                hall.open(until_ms=until)
            case ("receipt",):
                hall.tell(m.OpinionsReceipt(run=RUN, round=1))
            case ("close",):
                closed = closed or not hall.up(m.Opinions)
                hall.tell(m.OpinionClose(run=RUN, round=1))
            case ("need", agent):
                hall.say(agent, m.Need(run=RUN, round=1, digest=MODEL, ranges=((0, 1),)))
            case ("wait", seconds):
                hall.wait(float(seconds))
    hall.wait(3.0)
    told = hall.up(m.Opinions)
    assert bool(told) != closed
    assert hall.now >= began + 3.0
    valid = {a: (s, k) for a, (s, n, k) in first.items() if n and 0 <= s <= 1}
    for one in told:
        assert sum(one.reasons.values()) + len(one.session) // 4 == one.asked
        assert scores(one) == {a: s for a, (s, k) in valid.items() if k == one.metric}
    assert len({(one.session, one.score, one.asked) for one in told}) <= 1


def test_twenty_thousand_opinions_fit_one_message_and_ids_that_do_not_wait() -> None:
    hall = Hall()
    agents = [f"{i:05}-" + "x" * 58 for i in range(20_000)]
    hall.hello(*agents)
    hall.open()
    for agent in agents:
        hall.opinion(agent, epsilon=1.0)
    [told] = hall.up(m.Opinions)
    assert told.reasons["unnamed"] + len(told.session) // 4 == told.asked == 20_000
    known = len(told.new_ids)
    assert decode(Direction.EDGE_TO_COORDINATOR, encode(told)) == told
    for _ in range(3):
        hall.open(epoch=told.epoch, known=known)
        told = hall.up(m.Opinions)[-1]
        known = told.known + len(told.new_ids)
        assert len(encode(told)) < 1_000_000
    assert (known, len(told.session) // 4, told.reasons) == (20_000, 20_000, {})


def test_why_agents_have_no_row() -> None:
    hall = _hall("a0", "a1", "a2", "a3", "a4", "a5")
    hall.open()
    hall.opinion("a0", metric="rmse")
    hall.opinion("a1", samples=0, score=0.0, reason="no samples")
    hall.opinion("a2", 1.5)
    hall.opinion("a3")
    hall.opinion("a4")
    hall.say("a5", m.Bye())
    [told] = hall.up(m.Opinions)
    assert told.reasons == {"gone": 1, "invalid": 1, "metric": 1, "none": 1}
    assert (told.metric, list(scores(told)), told.asked) == ("accuracy", ["a3", "a4"], 6)
