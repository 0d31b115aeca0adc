"""Who gets an index, for good and few by the word of one edge; and what is logged of an edge."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_coordinator.core import edges
from fedagent_coordinator.core.edges import EdgeSession, EdgeTable
from fedagent_coordinator.policies.base import MAX_MICRO
from fedagent_node.effects import Emit
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


def _edge() -> EdgeSession:
    return EdgeSession("edge-1", 0, "life", 0.0, "m" * 64, name="hall")


def test_what_is_odd_about_more_and_more_agents_is_said_a_dozen_times_and_not_a_thousand() -> None:
    edge = _edge()
    said = [one for count in range(3001) for one in edge.suspect("terms", count)]
    counts = [int(str(one.fields["agents"])) for one in said if isinstance(one, Emit)]
    assert counts[0] == 1
    assert len(counts) <= np.log2(3000) + 1
    assert counts[-1] >= 3000 / 2
    assert len(edge.suspect("opinions", 1)) == 1


def test_a_device_that_has_just_joined_is_no_stranger() -> None:
    edge = _edge()
    said = [edge.named_strangers(agents) for agents in (1, 1, 0, 1, 1, 1, 1)]
    assert [len(one) for one in said] == [0, 0, 0, 0, 0, 1, 0]
