"""Who gets an index: agents that were heard, few by the word of one edge; an index is for good."""

from unittest import mock

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.core import edges
from fedagent_coordinator.core.answers import opinions_in, volunteers_in
from fedagent_coordinator.core.edges import EdgeSession, EdgeTable
from fedagent_coordinator.core.signed_answers import ClaimedRows
from fedagent_protocol import messages as m
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
            for row, index in zip(rows.tolist(), client.tolist(), strict=True):
                assert indices.client_of.get(ids[row], -1) == index
                if members is not None and ids[row] not in members:
                    assert index == -1
            assert indices.client_of.items() >= former.items()
            former = dict(indices.client_of)
            assert sorted(former.values()) == list(range(len(former)))
            assert edge.indexed <= MOST
            assert len(former) <= MOST * len(table.by_id)


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
