"""Who gets an index, for good and few by the word of one edge; and what is logged of an edge."""

from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_coordinator.core import edges
from fedagent_coordinator.core.answers import opinions_in, volunteers_in
from fedagent_coordinator.core.edges import TROUBLES, EdgeSession, EdgeTable
from fedagent_coordinator.core.signed_answers import ClaimedRows
from fedagent_coordinator.policies.base import MAX_MICRO
from fedagent_node.effects import Effect, Emit
from fedagent_protocol import messages as m
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, encode
from fedagent_protocol.errors import MalformedError
from tests.fakes.engine_field import MemoryIndices

MOST = 4
AGENTS = [f"agent-{i}" for i in range(12)]
LISTED = st.lists(st.sampled_from(AGENTS), unique=True, max_size=12)
NAMED = st.tuples(st.integers(0, 2), LISTED, st.integers(0, 2**12 - 1))


@given(
    said=st.lists(NAMED, max_size=12),
    members=st.none() | st.frozensets(st.sampled_from(AGENTS)),
)
def test_indices_are_dense_few_and_never_change(
    said: list[tuple[int, list[str], int]], members: frozenset[str] | None
) -> None:
    indices, former = MemoryIndices(), dict[str, int]()
    table = EdgeTable(indices)
    with mock.patch.object(edges, "MAX_CLIENTS", MOST):
        for epoch, (place, ids, mask) in enumerate(said):
            edge, _ = table.hear(f"edge-{place}", str(epoch), 0.0, "")
            assert edge.learn_ids(0, tuple(ids))
            rows = np.flatnonzero([mask >> i & 1 for i in range(len(ids))]).astype(np.int32)
            client = edge.index_of(rows, indices, members)
            known = [indices.client_of.get(ids[row], -1) for row in rows.tolist()]
            observed = [index for index in known if index >= 0][:MOST]
            assert [index for index in client.tolist() if index >= 0] == observed
            assert all(index in (-1, one) for index, one in zip(client, known, strict=True))
            if members is not None:
                assert {ids[row] for row in rows[client >= 0]} <= members
            assert indices.client_of.items() >= former.items()
            former = dict(indices.client_of)
            assert sorted(former.values()) == list(range(len(former)))
            assert edge.indexed <= MOST
            assert len(former) <= MOST * len(table.by_id)


def test_an_order_to_all_who_are_observed_at_an_edge_can_be_sent() -> None:
    indices = MemoryIndices()
    table = EdgeTable(indices)
    ids = [f"{number:032x}" for number in range(2 * edges.MAX_CLIENTS)]
    for place in range(2):
        half = ids[place * edges.MAX_CLIENTS :][: edges.MAX_CLIENTS]
        edge, _ = table.hear(f"edge-{place}", "1", 0.0, "")
        assert edge.learn_ids(0, tuple(half))
        everybody = np.arange(edges.MAX_CLIENTS, dtype=np.int32)
        assert (edge.index_of(everybody, indices, None) >= 0).all()
    failover, _ = table.hear("edge-1", "2", 0.0, "")
    failover.restart("2")
    assert failover.learn_ids(0, tuple(ids))
    client = failover.index_of(np.arange(len(ids), dtype=np.int32), indices, None)
    largest = 2**53 - 1
    work = m.Assignment(
        agent=ids[0],
        iterations=largest,
        price=MAX_MICRO,
        context_seq=largest,
        releases=largest,
        assigned=bytes(64),
    )
    order = m.RoundOrder(
        run="a" * 32,
        round=largest,
        task="b" * 64,
        assignments=tuple(
            structs.replace(work, agent=ids[row]) for row in np.flatnonzero(client >= 0)
        ),
        deadline_ms=1000,
        max_wait_ms=1000,
    )
    assert len(order.assignments) == edges.MAX_CLIENTS
    assert len(encode(order)) < MAX_PAYLOAD_BYTES


def test_a_name_alone_gets_no_index_and_too_many_names_are_refused() -> None:
    table = EdgeTable(MemoryIndices())
    edge, _ = table.hear("edge-0", "e", 0.0, "")
    assert edge.learn_ids(0, tuple(f"{i}" for i in range(edges.MAX_SESSIONS)))
    assert table.indices.sizes() == (0, 1)
    with pytest.raises(MalformedError, match="more sessions"):
        edge.learn_ids(edges.MAX_SESSIONS, ("one more",))


def test_answers_of_agents_without_an_index_are_left_out_with_their_columns() -> None:
    indices = MemoryIndices()
    edge, _ = EdgeTable(indices).hear("edge-0", "e", 0.0, "")
    edge.learn_ids(0, ("a", "b", "c"))
    rows = np.array([2, 0, 1], dtype="<i4").tobytes()
    opinions = m.Opinions(
        run="r" * 32,
        round=1,
        epoch="e",
        known=3,
        new_ids=(),
        session=rows,
        asked=3,
        model="d" * 64,
        metric="accuracy",
        score=np.array([0.1, 0.2, 0.3], dtype="<f4").tobytes(),
        samples=np.array([1, 2, 3], dtype="<i8").tobytes(),
    )
    members = frozenset({"b", "c"})

    def index(of: EdgeSession, rows: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
        return of.index_of(rows, indices, members)

    def word(rows: ClaimedRows) -> npt.NDArray[np.bool_]:
        return rows.client >= 0

    found = opinions_in(opinions, edge, index, word, model="d" * 64)
    assert (found.client.tolist(), found.samples.tolist(), found.asked) == ([1, 0], [1, 3], 3)
    assert np.allclose(found.score, [0.1, 0.3])
    volunteers = m.Volunteers(
        run="r" * 32, round=1, epoch="e", known=3, new_ids=(), session=rows, asked=3
    )
    some = volunteers_in(volunteers, edge, index, word)
    assert (some.client.tolist(), some.named) == ([1, 0], ("a", "b", "c"))


def _edge() -> EdgeSession:
    return EdgeSession("edge-1", 0, "life", 0.0, "m" * 64, name="hall")


def _said(effects: list[Effect], what: str) -> list[object]:
    return [one.fields[what] for one in effects if isinstance(one, Emit)]


@pytest.mark.parametrize("words", [("no room: {}",), ("no room: {}", "")])
def test_an_edge_whose_words_change_all_the_time_fills_no_log(words: tuple[str, ...]) -> None:
    edge, said, now = _edge(), [], 100.0
    for n in range(3600):
        now += 1.0
        said += _said(edge.in_trouble(words[n % len(words)].format(n), now), "reason")
    at_once, per_s = TROUBLES
    assert at_once <= len(said) <= at_once + 3600 * per_s
    # What is true in the end is said, late as it may be.
    last = "the disk is gone"
    late = [_said(edge.in_trouble(last, now + n), "reason") for n in range(round(1 / per_s) + 1)]
    assert [reason for one in late for reason in one] == [last]


def test_trouble_and_its_end_are_said_at_once() -> None:
    edge = _edge()
    assert _said(edge.in_trouble("no room", 1.0), "reason") == ["no room"]
    assert edge.in_trouble("no room", 2.0) == []
    assert _said(edge.in_trouble("", 3.0), "reason") == [""]


def test_an_edge_that_starts_again_in_good_order_is_said_to_take_part_again() -> None:
    edge = _edge()
    edge.in_trouble("no room", 1.0)
    edge.restart("another life")
    assert _said(edge.in_trouble("", 2.0), "reason") == [""]


def test_a_device_that_has_just_joined_is_no_stranger() -> None:
    edge = _edge()
    assert edge.named_strangers(np.array([3], dtype=np.int32)) == []
    assert edge.named_strangers(np.array([], dtype=np.int32)) == []
    assert edge.named_strangers(np.array([4], dtype=np.int32)) == []


def test_strangers_who_are_others_each_time_are_said_all_the_same() -> None:
    edge, said = _edge(), []
    for n in range(1000):
        rows = np.arange(1000, dtype=np.int32) + 1000 * (n % 2)
        said += _said(edge.named_strangers(rows), "agents")
    assert said == [1000]


def test_strangers_who_become_more_are_said_a_dozen_times_and_not_a_thousand() -> None:
    edge, said = _edge(), []
    for count in range(1, 3001):
        said += _said(edge.named_strangers(np.arange(count, dtype=np.int32)), "agents")
    assert said[0] == 1
    assert len(said) <= np.log2(3000) + 1
    assert float(str(said[-1])) >= 3000 / 2


def test_terms_that_nobody_signed_are_said_a_dozen_times_and_not_a_thousand() -> None:
    edge, said = _edge(), []
    for count in range(3001):
        said += _said(edge.told_unsigned("terms", count), "agents")
    assert said[0] == 1
    assert len(said) <= np.log2(3000) + 1
    assert _said(edge.told_unsigned("opinions", 1), "agents") == [1]


def test_the_sessions_of_another_life_are_others() -> None:
    edge = _edge()
    rows = np.array([0, 1], dtype=np.int32)
    edge.named_strangers(rows)
    edge.restart("another life")
    assert edge.named_strangers(rows) == []
    assert _said(edge.named_strangers(rows), "agents") == [2]
