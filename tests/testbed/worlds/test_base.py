"""How a round of a study ends: the edge's rule at every edge, and what is known of it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.policies import Feedback
from fedagent_task.aggregation import RoundRule
from fedagent_testbed.worlds.base import Times, outcome
from tests.fakes.rounds import column_view

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


def played(what: Rows, deadline: float, max_wait: float, enough: int) -> Feedback:
    """Order one pair of each client, which sees all three edges."""
    view = column_view(clients=len(what), edges_seen=3, deadline_s=deadline)
    pairs = np.array([3 * i + edge for i, (edge, _) in enumerate(what)], dtype=np.int64)
    tau = np.full(len(view.pair_edge), 0.01)
    tau[pairs] = [tau for _, tau in what]
    times = Times(dt_s=0.25 * tau, lc_s=0.5 * tau, ut_s=0.25 * tau)
    return outcome(view, pairs, times, min_updates=enough, max_wait_s=max_wait)


@given(what=rows, **limits)
def test_every_edge_ends_by_the_rule(
    what: Rows, deadline: float, max_wait: float, enough: int
) -> None:
    feedback = played(what, deadline, max_wait, enough)
    rule = RoundRule(deadline, max_wait, enough)
    tau = np.array([one for _, one in what])
    for edge in {edge for edge, _ in what}:
        mine = feedback.view.pair_edge[feedback.pairs] == edge
        ended = rule.settle(tau[mine])
        assert feedback.X[mine].tolist() == ended.in_time.tolist()
        assert feedback.used[mine].tolist() == ended.used.tolist()
        assert feedback.censored[mine].tolist() == (~ended.known).tolist()
        assert feedback.tau_s[mine].tolist() == np.minimum(tau[mine], ended.wait_s).tolist()
    assert feedback.unpaid.tolist() == feedback.censored.tolist()
    assert not (feedback.used & feedback.unpaid).any()
    stages = feedback.dt_s + feedback.lc_s + feedback.ut_s
    seen = ~feedback.censored
    assert np.isnan(stages[~seen]).all()
    assert stages[seen] == pytest.approx(feedback.tau_s[seen])
