"""Who is observed at an edge: members, few at once; and what is logged of an edge."""

import numpy as np
import pytest
from msgspec import structs

from fedagent_coordinator.core.edges import MAX_CLIENTS, MAX_SESSIONS, EdgeSession, EdgeTable
from fedagent_coordinator.policies.base import MAX_MICRO
from fedagent_node.effects import Emit
from fedagent_protocol import messages as m
from fedagent_protocol.codec import MAX_PAYLOAD_BYTES, encode
from fedagent_protocol.errors import MalformedError
from tests.fakes.engine_field import MemoryIndices


def test_who_is_observed_keeps_its_index_at_any_edge_and_strangers_get_none() -> None:
    indices = MemoryIndices()
    table, members = EdgeTable(indices), frozenset("abd")
    for edge, epoch, ids, wanted in (
        ("one", "1", "abc", [0, 1, -1]),
        ("two", "1", "cdb", [-1, 2, 1]),
        ("one", "2", "ba", [1, 0]),
    ):
        session, _ = table.hear(edge, epoch, 0.0, "")
        assert session.learn_ids(0, tuple(ids))
        rows = np.arange(len(ids), dtype=np.int32)
        assert session.clients(rows, indices, members).tolist() == wanted
    assert session.clients(rows, indices, members - {"a"}).tolist() == [1, -1], "it was revoked"
    assert indices.client_of == {"a": 0, "b": 1, "d": 2}


def test_an_order_to_all_who_are_observed_at_an_edge_can_be_sent() -> None:
    indices = MemoryIndices()
    edge, _ = EdgeTable(indices).hear("edge-1", "2", 0.0, "")
    ids = [f"{number:032x}" for number in range(2 * MAX_CLIENTS)]
    assert edge.learn_ids(0, tuple(ids))
    client = edge.clients(np.arange(len(ids), dtype=np.int32), indices, None)
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
    assert len(order.assignments) == MAX_CLIENTS
    assert len(encode(order)) < MAX_PAYLOAD_BYTES


def test_a_name_alone_gets_no_index_and_too_many_names_are_refused() -> None:
    table = EdgeTable(MemoryIndices())
    edge, _ = table.hear("edge-0", "e", 0.0, "")
    assert edge.learn_ids(0, tuple(f"{i}" for i in range(MAX_SESSIONS)))
    assert table.indices.sizes() == (0, 1)
    with pytest.raises(MalformedError, match="more sessions"):
        edge.learn_ids(MAX_SESSIONS, ("one more",))


def test_what_is_odd_about_more_and_more_agents_is_said_a_dozen_times_and_not_a_thousand() -> None:
    edge = EdgeSession("edge-1", 0, "life", 0.0, "m" * 64)
    said = [one for count in range(3001) for one in edge.suspect("terms", count)]
    counts = [int(str(one.fields["agents"])) for one in said if isinstance(one, Emit)]
    assert counts[0] == 1
    assert len(counts) <= np.log2(3000) + 1
    assert counts[-1] >= 3000 / 2
    # A device that has just joined is no stranger.
    said_of = [edge.left_out(agents, 1) for agents in (1, 1, 0, 1, 1, 1, 1)]
    assert [len(one) for one in said_of] == [0, 0, 0, 0, 0, 1, 0]
