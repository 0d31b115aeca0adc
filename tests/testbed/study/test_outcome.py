"""How a round ends: the vectorised rule against a slow one, and against the live edge's."""

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_edge.core.admission import Verdict
from fedagent_edge.core.round import EdgeRound, Stage
from fedagent_protocol import messages as m
from fedagent_testbed.worlds.base import Times, outcome, round_seconds

DIGEST = "ab" * 32
BEGAN = 1000.0

Rows = list[tuple[int, float]]
rows = st.lists(
    # Away from deadline and give-up, which an edge handles a moment late.
    st.tuples(st.integers(0, 2), st.integers(1, 60).map(lambda k: 0.1 * k + 0.05)),
    max_size=12,
    unique_by=lambda row: row[1],
)
limits = {
    "deadline": st.integers(0, 50).map(lambda k: 0.1 * k + 0.1),
    "max_wait": st.integers(0, 60).map(lambda k: 0.1 * k + 0.1),
    "enough": st.integers(1, 5),
}


def view_of(edges: npt.NDArray[np.int32], deadline: float) -> RoundView:
    n = len(edges)
    return RoundView(
        round=1,
        pair_client=np.arange(n, dtype=np.int32),
        pair_edge=edges,
        pair_features=np.zeros((n, 0), dtype=np.float32),
        feature_names=(),
        client_price=np.full(n, 7, dtype=np.int64),
        client_available=np.ones(n, dtype=np.bool_),
        edge_budget=np.full(3, 1000, dtype=np.int64),
        deadline_s=deadline,
    )


def played(what: Rows, deadline: float, max_wait: float, enough: int) -> Feedback:
    """Order all pairs but the first, which nobody ordered."""
    edges = np.array([0, *(edge for edge, _ in what)], dtype=np.int32)
    tau = np.array([0.01, *(tau for _, tau in what)])
    times = Times(dt_s=0.25 * tau, lc_s=0.5 * tau, ut_s=0.25 * tau)
    pairs = np.arange(1, len(edges))
    return outcome(view_of(edges, deadline), pairs, times, min_updates=enough, max_wait_s=max_wait)


def slow(what: Rows, deadline: float, max_wait: float, enough: int) -> list[tuple[bool, ...]]:
    """X, used and censored of each, one after the other, by the words of eq. 6."""
    ended: list[tuple[bool, ...]] = []
    for edge, tau in what:
        here = sorted(t for e, t in what if e == edge)
        wanted = min(enough, len(here))
        in_time = [t for t in here if t <= deadline]
        possible = [t for t in here if t <= max(deadline, max_wait)]
        if len(in_time) >= wanted:
            aggregate, end = in_time, deadline
        elif len(possible) >= wanted:
            aggregate, end = possible[:wanted], possible[wanted - 1]
        else:
            aggregate, end = [], max(deadline, max_wait)
        ended.append((tau <= deadline, tau in aggregate, tau > end))
    return ended


@given(what=rows, **limits)
def test_it_is_the_rule(what: Rows, deadline: float, max_wait: float, enough: int) -> None:
    feedback = played(what, deadline, max_wait, enough)
    found = list(
        zip(feedback.X.tolist(), feedback.used.tolist(), feedback.censored.tolist(), strict=True)
    )
    assert found == slow(what, deadline, max_wait, enough)
    assert feedback.void.tolist() == feedback.censored.tolist()
    assert not (feedback.used & feedback.void).any()
    stages = feedback.dt_s + feedback.lc_s + feedback.ut_s
    seen = ~feedback.censored
    assert np.isnan(stages[~seen]).all()
    assert stages[seen] == pytest.approx(feedback.tau_s[seen])


@given(what=rows, **limits)
def test_it_is_what_the_live_edge_does(
    what: Rows, deadline: float, max_wait: float, enough: int
) -> None:
    feedback = played(what, deadline, max_wait, enough)
    longest = 0.0
    for edge in {edge for edge, _ in what}:
        mine = np.flatnonzero(feedback.view.pair_edge[feedback.pairs] == edge)
        live, failed = live_edge([what[i][1] for i in mine], deadline, max_wait, enough)
        longest = max(longest, live.closed_at - BEGAN)
        ended = live.outcomes(live.closed_at)
        # An edge that fails keeps no aggregate, whatever was in its sum.
        used = [o.used and not failed for o in ended]
        assert feedback.X[mine].tolist() == [o.in_time for o in ended]
        assert feedback.used[mine].tolist() == used
        assert feedback.void[mine].tolist() == [not o.valid for o in ended]
        assert feedback.censored[mine].tolist() == [o.censored for o in ended]
        assert feedback.tau_s[mine] == pytest.approx([o.tau_ms / 1000 for o in ended], abs=0.012)
    assert round_seconds(feedback) == pytest.approx(longest, abs=0.012)


def live_edge(
    taus: list[float], deadline: float, max_wait: float, enough: int
) -> tuple[EdgeRound, bool]:
    """Let a round of the edge aggregator run to its end."""
    order = m.RoundOrder(
        run="0" * 32,
        round=1,
        task=DIGEST,
        assignments=tuple(m.Assignment(agent=f"a{i}") for i in range(len(taus))),
        deadline_ms=round(deadline * 1000),
        max_wait_ms=round(max_wait * 1000),
        min_updates=enough,
        weighting=m.Weighting.UNIFORM,
    )
    live = EdgeRound("0" * 32, order, DIGEST, BEGAN)
    arrivals = sorted((BEGAN + tau, f"a{i}") for i, tau in enumerate(taus))
    now = BEGAN
    while not live.is_over(now):
        due = live.next_due(now)
        if arrivals and arrivals[0][0] <= due:
            now, agent = arrivals.pop(0)
            part = live.parts[agent]
            part.offer = m.UpdateOffer(
                digest=DIGEST, size=9, chunk_bytes=1024, base=DIGEST, task=DIGEST, num_samples=1
            )
            live.complete(agent, now)
            live.checked(agent, Verdict(norm=1.0))
            part.stage = Stage.ENDED
        else:
            now = due
    live.closed_at = now
    return live, bool(live.failed)


def test_an_empty_round_takes_no_time() -> None:
    assert round_seconds(played([], 3.0, 6.0, 1)) == 0.0


@pytest.mark.parametrize(
    ("what", "enough", "seconds"),
    [
        ([(0, 1.0), (0, 2.0)], 1, 2.0),  # all came
        ([(0, 1.0), (0, 4.0)], 1, 3.0),  # who is late is not waited for
        ([(0, 1.0), (0, 4.0), (0, 5.0)], 2, 4.0),  # the second is wanted
        ([(0, 1.0), (0, 9.0)], 2, 6.0),  # and does not come
        ([(0, 1.0), (1, 4.0)], 1, 4.0),  # the slowest edge
        ([(0, 1.0), (0, 4.0), (0, 5.0)], 9, 5.0),  # Z_eff is who was ordered
    ],
)
def test_a_round_lasts_as_long_as_its_slowest_edge(what: Rows, enough: int, seconds: float) -> None:
    assert round_seconds(played(what, 3.0, 6.0, enough)) == seconds


def test_a_wait_shorter_than_the_deadline_is_the_deadline() -> None:
    feedback = played([(0, 2.5), (0, 9.0)], 3.0, 1.0, 2)
    assert feedback.X.tolist() == [True, False]
    assert feedback.used.tolist() == [False, False]
    assert feedback.void.tolist() == [False, True]
    assert feedback.tau_s.tolist() == [2.5, 3.0]
