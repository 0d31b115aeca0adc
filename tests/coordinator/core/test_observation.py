"""What many edges say becomes one view, as a slow dictionary would have it.

Where edges contradict each other, the newest that a client signed counts.
"""

import math
from typing import NamedTuple

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

NAMES = ("compute", "rtt_s", "down_bps")
DEVICES = [identity(f"device-{i}") for i in range(4)]
EDGES = [identity(f"edge-{i}").id for i in range(3)]


class Row(NamedTuple):
    """What an edge says of a client, and who has signed it."""

    client: int
    seq: int = 0
    price: int = 0
    available: bool = False
    age_ms: int = 0
    signed: str = "own"
    features: tuple[float, ...] = ()


class Said(NamedTuple):
    """The rows of an edge, when they came, and which features they have."""

    rows: list[Row]
    received_at: float = 100.0
    names: tuple[str, ...] = ()


def claim(row: Row, edge: int) -> bytes:
    if row.signed == "none":
        return bytes(CLAIM_BYTES)
    me = DEVICES[row.client if row.signed == "own" else (row.client + 1) % len(DEVICES)]
    agent, edge_id = DEVICES[row.client].id, EDGES[edge]
    stated = terms(edge_id, agent, seq=row.seq, price=row.price, available=row.available)
    return claim_of(me, stated)


def observation(edge: int, said: Said) -> Observation:
    rows, width = said.rows, len(said.names)
    client = np.array([row.client for row in rows], dtype=np.int32)
    columns = Columns(
        features=said.names,
        session=client,
        price=np.array([row.price for row in rows], dtype=np.int64),
        context_seq=np.array([row.seq for row in rows], dtype=np.int64),
        age_ms=np.array([row.age_ms for row in rows], dtype=np.int32),
        available=np.array([row.available for row in rows], dtype=np.bool_),
        values=np.array([row.features for row in rows], dtype=np.float32).reshape(len(rows), width),
        claim=np.frombuffer(b"".join(claim(row, edge) for row in rows), np.uint8).reshape(
            -1, CLAIM_BYTES
        ),
    )
    ids = [device.id for device in DEVICES]
    return Observation(edge, client, columns, said.received_at, "", EDGES[edge], ids)


@st.composite
def an_edge(draw: st.DrawFn) -> Said:
    """Draw from few values, so that edges agree, disagree and tie."""
    names = tuple(draw(st.lists(st.sampled_from(NAMES), unique=True)))
    number = st.one_of(st.just(math.nan), st.floats(-4, 4, width=32))
    row = st.tuples(
        st.integers(0, 3),
        st.integers(0, 50),
        st.booleans(),
        st.sampled_from([0, 10, 44_000, 46_000]),
        st.sampled_from(["own", "own", "none", "forged"]),
        st.tuples(*[number] * len(names)),
    )
    who = draw(st.lists(st.integers(0, len(DEVICES) - 1), unique=True))
    rows = [Row(client, *draw(row)) for client in who]
    return Said(rows, draw(st.sampled_from([95.0, 99.5, 100.0])), names)


def age(said: Said, row: Row) -> float:
    return row.age_ms / 1000.0 + (100.0 - said.received_at)


def refused(edges: list[Said], signs: set[int]) -> set[tuple[int, int]]:
    """Return whose rows are not their word, at which edge; `signs` have signed before."""
    found: set[tuple[int, int]] = set()
    for client in range(len(DEVICES)):
        rows = [(r, e) for e, said in enumerate(edges) for r in said.rows if r.client == client]
        rows = [(r, e) for r, e in rows if age(edges[e], r) <= FRESH_S]
        if len(rows) < 2 and client not in signs:
            continue
        rows.sort(key=lambda one: -one[0].seq)
        kinds = [row.signed for row, _ in rows]
        if "own" in kinds:
            signs.add(client)
            rows = rows[: kinds.index("own")]
        found |= {(client, edge) for _, edge in rows}
    return found


def merged(edges: list[Said], needs: frozenset[str], signed: SignedTerms | None) -> Observed:
    seen = [observation(edge, said) for edge, said in enumerate(edges)]
    none, sizes = np.zeros(len(EDGES), dtype=np.int64), (len(DEVICES), len(EDGES))
    return merge_observations(
        seen[::-1], round_=7, now=100.0, sizes=sizes, needs=needs, edge_budget=none, terms=signed
    )


UNSIGNED = Said([Row(0, 2, 1, signed="none")])
REPEATED = [[Said([Row(0)]), Said([Row(0, 2, 1)])], [Said([Row(0)]), UNSIGNED]]
"""An edge repeats what a client has signed before, without the signature."""


@settings(max_examples=60)
@given(
    rounds=st.lists(st.lists(an_edge(), max_size=3), min_size=1, max_size=3),
    needs=st.frozensets(st.sampled_from(NAMES)),
    site=st.booleans(),
)
@example(rounds=REPEATED, needs=frozenset(), site=True)
@example(rounds=[[Said([Row(0)]), Said([Row(0, price=1)])]], needs=frozenset(), site=False)
def test_the_view_is_what_a_slow_dictionary_says(
    rounds: list[list[Said]], needs: frozenset[str], site: bool
) -> None:
    signed, signs = SignedTerms(), set[int]()
    for edges in rounds:
        found = merged(edges, needs, signed if site else None)
        out = refused(edges, signs) if site else set()
        known = {name for said in edges for name in said.names}
        best: dict[int, tuple[tuple[int, float, int], Row]] = {}
        pairs: dict[tuple[int, int], dict[str, float]] = {}
        stale = incomplete = 0
        for edge, said in enumerate(edges):
            for row in said.rows:
                if age(said, row) > FRESH_S:
                    stale += 1
                elif (row.client, edge) not in out:
                    # The largest seq; of equals the freshest; of equals the first edge.
                    rank = (row.seq, -age(said, row), -edge)
                    if row.client not in best or rank > best[row.client][0]:
                        best[row.client] = rank, row
                    own = dict(zip(said.names, row.features, strict=True))
                    features = {name: own.get(name, math.nan) for name in known}
                    whole = not any(math.isnan(features[name]) for name in needs & known)
                    incomplete += not whole
                    if whole:
                        pairs[row.client, edge] = features
        view = found.view
        for client in range(len(DEVICES)):
            row = best[client][1] if client in best else Row(client)
            assert view.client_price[client] == row.price
            assert view.client_available[client] == row.available
            assert found.client_seq[client] == row.seq
        places = list(zip(view.pair_client.tolist(), view.pair_edge.tolist(), strict=True))
        assert set(places) == pairs.keys()
        for place, row_values in zip(places, view.pair_features.tolist(), strict=True):
            wanted = [pairs[place][name] for name in view.feature_names]
            assert np.array_equal(row_values, wanted, equal_nan=True)
        left = {"stale": stale, "no_feature": incomplete, "unsigned": len(out)}
        assert found.left_out == {why: count for why, count in left.items() if count}
