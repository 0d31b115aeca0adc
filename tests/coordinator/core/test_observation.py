"""The columns of many edges become one view, as a slow dictionary would have it."""

import math

import numpy as np
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from fedagent_coordinator.core.observation import FRESH_S, Observation, Observed, merge_observations
from fedagent_protocol.columns import Columns

NAMES = ("compute", "rtt_s", "down_bps")
CLIENTS = 6


@st.composite
def answers(draw: st.DrawFn) -> list[Observation]:
    """Draw the answers of up to four edges about six clients."""
    seen = []
    for edge in draw(st.permutations(range(draw(st.integers(0, 4))))):
        clients = draw(st.lists(st.integers(0, CLIENTS - 1), unique=True))
        names = tuple(draw(st.lists(st.sampled_from(NAMES), unique=True)))
        rows = len(clients)

        def column(values: st.SearchStrategy[float], count: int = rows) -> list[float]:
            return draw(st.lists(values, min_size=count, max_size=count))

        number = st.one_of(st.just(math.nan), st.floats(-4, 4, width=32))
        columns = Columns(
            features=names,
            session=np.arange(rows, dtype=np.int32),
            price=np.array(column(st.integers(0, 50)), dtype=np.int64),
            # Few values, so that edges agree, disagree and tie.
            context_seq=np.array(column(st.integers(0, 3)), dtype=np.int64),
            age_ms=np.array(column(st.sampled_from([0, 10, 44_000, 46_000])), dtype=np.int32),
            available=np.array(column(st.booleans()), dtype=np.bool_),
            values=np.array(column(number, rows * len(names)), dtype=np.float32).reshape(
                rows, len(names)
            ),
        )
        received = draw(st.sampled_from([95.0, 99.5, 100.0]))
        seen.append(Observation(edge, np.array(clients, dtype=np.int32), columns, received))
    return seen


def slow(
    seen: list[Observation], needs: frozenset[str]
) -> tuple[dict[int, tuple[int, bool, int]], dict[tuple[int, int], dict[str, float]], int, int]:
    """Return clients (price, available, seq), pairs with features, stale and incomplete rows."""
    best: dict[int, tuple[tuple[int, float, int], tuple[int, bool, int]]] = {}
    pairs: dict[tuple[int, int], dict[str, float]] = {}
    stale = incomplete = 0
    known = {name for answer in seen for name in answer.columns.features}
    for answer in sorted(seen, key=lambda answer: answer.edge):
        c = answer.columns
        for row, client in enumerate(answer.client.tolist()):
            age = int(c.age_ms[row]) / 1000.0 + (100.0 - answer.received_at)
            if age > FRESH_S:
                stale += 1
                continue
            # The largest seq; of equals the freshest; of equals the first edge.
            rank = (int(c.context_seq[row]), -age, -answer.edge)
            facts = (int(c.price[row]), bool(c.available[row]), int(c.context_seq[row]))
            if client not in best or rank > best[client][0]:
                best[client] = (rank, facts)
            own = dict(zip(c.features, c.values[row].tolist(), strict=True))
            features = {name: own.get(name, math.nan) for name in known}
            if any(math.isnan(features[name]) for name in needs & known):
                incomplete += 1
            else:
                pairs[client, answer.edge] = features
    return {client: facts for client, (_, facts) in best.items()}, pairs, stale, incomplete


def observed(seen: list[Observation], needs: frozenset[str]) -> Observed:
    return merge_observations(
        seen,
        round_=7,
        now=100.0,
        sizes=(CLIENTS, 4),
        needs=needs,
        edge_budget=np.full(4, 100, dtype=np.int64),
    )


@examples(max_examples=50)
@given(seen=answers(), needs=st.frozensets(st.sampled_from(NAMES)))
def test_the_view_is_what_a_slow_dictionary_says(
    seen: list[Observation], needs: frozenset[str]
) -> None:
    clients, pairs, stale, incomplete = slow(seen, needs)
    result = observed(seen, needs)
    view = result.view
    for client in range(CLIENTS):
        price, available, seq = clients.get(client, (0, False, 0))
        assert view.client_price[client] == price
        assert view.client_available[client] == available
        assert result.client_seq[client] == seq
    got = {
        (client, edge): dict(zip(view.feature_names, row, strict=True))
        for client, edge, row in zip(
            view.pair_client.tolist(),
            view.pair_edge.tolist(),
            view.pair_features.tolist(),
            strict=True,
        )
    }
    assert got.keys() == pairs.keys()
    for pair, features in pairs.items():
        assert got[pair].keys() == features.keys()
        for name, value in features.items():
            assert np.array_equal(got[pair][name], value, equal_nan=True)
    assert result.left_out["stale"] == stale
    assert result.left_out["no_feature"] == incomplete
