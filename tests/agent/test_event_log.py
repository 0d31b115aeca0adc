"""What a device tells of its newest events, and what it keeps to itself."""

from collections import Counter

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.core.event_log import (
    ASK_AGAIN_S,
    EVENTS,
    FIELDS,
    KEPT,
    MOST_TEXT,
    PRIVATE,
    EventLog,
)
from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode

NEED = m.LogNeed(agent="kitchen", number=7, last=200)


def need(number: int) -> m.LogNeed:
    return msgspec.structs.replace(NEED, number=number)


def told(effects: list[Effect], number: int = 7) -> m.LogTail:
    (send,) = effects
    assert isinstance(send, Send)
    assert send.to == "hall"
    assert isinstance(send.message, m.LogTail)
    assert (send.message.agent, send.message.number) == ("kitchen", number)
    return send.message


def test_the_newest_events_are_told_with_their_age_and_what_was_counted() -> None:
    counters = Counter({"declined_busy": 3, "192.168.1.20:1884_sent_bytes": 4000, "opinions": 2})
    log = EventLog(counters, private=False)
    for number in range(KEPT + 30):
        event = Emit("ordered", {"round": number, "edge": "hall", "sample": [0.25, 0.5]})
        opinion = Emit("opinion", {"round": number, "reason": "the owner grants none"})
        log.note([event, opinion, Send("hall", m.Bye())], float(number))
    tail = told(log.answer("hall", msgspec.structs.replace(NEED, last=20), KEPT + 30.0))
    assert [one.fields["round"] for one in tail.entries] == list(range(KEPT + 10, KEPT + 30))
    assert [one.age_ms for one in tail.entries[-2:]] == [2000, 1000]
    assert all(set(one.fields) == {"round", "edge"} for one in tail.entries)
    assert tail.counters == {"declined_busy": 3}


def test_who_keeps_its_log_tells_nothing_and_who_is_asked_too_often_says_so() -> None:
    counters = Counter[str]()
    private = EventLog(counters, private=True)
    private.note([Emit("ordered", {"round": 1})], 0.0)
    assert told(private.answer("hall", NEED, 1.0)) == m.LogTail(
        agent="kitchen", number=7, refused=PRIVATE
    )
    log = EventLog(counters, private=False)
    log.note([Emit("ordered", {"round": 1})], 0.0)
    assert told(log.answer("hall", NEED, 1.0)).entries
    assert log.answer("porch", NEED, 1.1) == [], "another edge has handed the same request on"
    again = told(log.answer("hall", need(8), 0.9 + ASK_AGAIN_S), 8)
    assert (again.entries, again.counters) == ((), {})
    assert again.refused == "asked again within 10 s"
    assert told(log.answer("hall", need(9), 1.0 + ASK_AGAIN_S), 9).entries
    assert counters == {"log_private": 1, "log_too_often": 1}


def test_an_answer_has_a_size() -> None:
    log = EventLog(Counter(), private=False)
    for number in range(KEPT):
        log.note([Emit("declined", {"round": number, "detail": "x" * 1000})], 0.0)
    tail = told(log.answer("hall", NEED, 1.0))
    rounds = [one.fields["round"] for one in tail.entries]
    assert rounds == list(range(KEPT - MOST_TEXT // 200, KEPT)), "the newest, 200 letters each"


VALUES = st.one_of(
    st.text(max_size=300),
    st.floats(),
    st.integers(),
    st.booleans(),
    st.lists(st.floats(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.none(),
)
HAPPENED = st.builds(
    Emit,
    st.sampled_from([*sorted(EVENTS), "opinion", "peers_off", "samples"]),
    st.dictionaries(st.sampled_from([*sorted(FIELDS), "sample", "address", "path"]), VALUES),
)


@given(events=st.lists(HAPPENED, max_size=12), seconds=st.floats(0, 1e8))
def test_whatever_happens_only_named_fields_leave_and_the_answer_can_be_read(
    events: list[Emit], seconds: float
) -> None:
    log = EventLog(Counter(), private=False)
    log.note(events, 0.0)
    tail = told(log.answer("hall", NEED, seconds))
    read = decode(Direction.AGENT_TO_EDGE, encode(tail))
    assert isinstance(read, m.LogTail)
    assert read == tail
    for event, entry in zip((e for e in events if e.name in EVENTS), read.entries, strict=True):
        assert entry.name == event.name
        assert set(entry.fields) <= FIELDS & set(event.fields)
