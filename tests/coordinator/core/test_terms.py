"""Where edges contradict each other, the newest that a client signed counts, as a slow one says."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedagent_coordinator.core.observation import (
    FRESH_S,
    Observation,
    Observed,
    SignedTerms,
    merge_observations,
)
from fedagent_protocol.columns import Columns
from fedagent_protocol.signed import CLAIM_BYTES, claim_of, terms
from tests.fakes.voices import identity

DEVICES = [identity(f"device-{i}") for i in range(3)]
EDGES = [identity(f"edge-{i}").id for i in range(3)]
Row = tuple[int, int, int, bool, float, str]
"""Client, number, price, availability, age, and how it is signed."""


def signed(row: Row, edge: int) -> bytes:
    client, seq, price, available, _, kind = row
    if kind == "none":
        return bytes(CLAIM_BYTES)
    me = DEVICES[client if kind == "own" else (client + 1) % len(DEVICES)]
    agent = DEVICES[client].id
    return claim_of(me, terms(EDGES[edge], agent, seq=seq, price=price, available=available))


def answer(edge: int, rows: list[Row]) -> Observation:
    columns = Columns(
        features=(),
        session=np.array([row[0] for row in rows], dtype=np.int32),
        price=np.array([row[2] for row in rows], dtype=np.int64),
        context_seq=np.array([row[1] for row in rows], dtype=np.int64),
        age_ms=np.array([1000 * row[4] for row in rows]).astype(np.int32),
        available=np.array([row[3] for row in rows], dtype=np.bool_),
        values=np.zeros((len(rows), 0), dtype=np.float32),
        claim=np.frombuffer(b"".join(signed(row, edge) for row in rows), np.uint8).reshape(
            -1, CLAIM_BYTES
        ),
    )
    client, ids = columns.session, [device.id for device in DEVICES]
    return Observation(edge, client, columns, 100.0, "", EDGES[edge], ids)


@st.composite
def rounds(draw: st.DrawFn) -> list[list[list[Row]]]:
    """Draw what each edge says in some rounds; numbers are drawn from few, so that some tie."""
    row = st.tuples(
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
        st.sampled_from([0.0, FRESH_S + 1]),
        st.sampled_from(["own", "own", "none", "forged"]),
    )
    said = []
    for _ in range(draw(st.integers(1, 3))):
        edges = []
        for _ in EDGES:
            who = draw(st.lists(st.integers(0, len(DEVICES) - 1), unique=True))
            edges.append([(client, *draw(row)) for client in who])
        said.append(edges)
    return said


def slow(edges: list[list[Row]], signs: set[int]) -> dict[int, set[int]]:
    """Return whose rows are refused, by edge; `signs` are the clients that have signed before."""
    refused: dict[int, set[int]] = {edge: set() for edge in range(len(EDGES))}
    for client in range(len(DEVICES)):
        rows = [(row, edge) for edge, of in enumerate(edges) for row in of if row[0] == client]
        rows = sorted((r for r in rows if r[0][4] <= FRESH_S), key=lambda r: -r[0][1])
        if len(rows) < 2 and client not in signs:
            continue
        kinds = [row[5] for row, _ in rows]
        newest = kinds.index("own") if "own" in kinds else len(kinds)
        if "own" in kinds:
            signs.add(client)
        for _, edge in rows[:newest]:
            refused[edge].add(client)
    return refused


def merged(seen: list[Observation], terms: SignedTerms) -> Observed:
    none = np.zeros(len(EDGES), dtype=np.int64)
    sizes = (len(DEVICES), len(EDGES))
    return merge_observations(
        seen, round_=1, now=100.0, sizes=sizes, needs=frozenset(), edge_budget=none, terms=terms
    )


REPEATED: list[list[list[Row]]] = [
    [[(0, 0, 0, False, 0.0, "own")], [(0, 2, 1, False, 0.0, "own")], []],
    [[(0, 0, 0, False, 0.0, "own")], [(0, 2, 1, False, 0.0, "none")], []],
]
"""An edge repeats what a client has signed before, without the signature."""


@settings(max_examples=40)
@given(rounds())
@example(REPEATED)
def test_what_a_client_did_not_sign_does_not_count(said: list[list[list[Row]]]) -> None:
    terms, signs = SignedTerms(), set[int]()
    for edges in said:
        found = merged([answer(i, rows) for i, rows in enumerate(edges)], terms)
        refused = slow(edges, signs)
        view = found.view
        pairs = set(zip(view.pair_client.tolist(), view.pair_edge.tolist(), strict=True))
        assert pairs == {
            (row[0], edge)
            for edge, rows in enumerate(edges)
            for row in rows
            if row[4] <= FRESH_S and row[0] not in refused[edge]
        }
        counts = {EDGES[edge]: len(who) for edge, who in refused.items() if who}
        assert dict(terms.unsigned) == counts
        assert found.left_out["unsigned"] == sum(counts.values())


def test_a_lying_edge_neither_mutes_nor_reprices_who_is_heard_elsewhere() -> None:
    terms = SignedTerms()
    honest = answer(0, [(0, 5, 2, True, 0.0, "own")])
    for kind in ("none", "forged"):
        lie = answer(1, [(0, 2**62, 9, False, 0.0, kind)])
        found = merged([honest, lie], terms)
        assert found.view.client_price.tolist() == [2, 0, 0]
        assert found.view.client_available.tolist() == [True, False, False]
        assert found.client_seq.tolist() == [5, 0, 0]
    alone = merged([answer(1, [(0, 2**62, 9, False, 0.0, "none")])], terms)
    assert len(alone.view.pair_client) == 0
