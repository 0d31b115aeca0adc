"""Opinions and volunteers in the books: once per round, read back as they came."""

import numpy as np
import pytest

from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.effects import BookOpinions
from fedagent_coordinator.errors import LedgerError
from tests.fakes.stored_runs import DIGEST, opinions, volunteers


def test_opinions_come_back_by_client_with_their_mean(store: Store, run: str) -> None:
    store.indices(run).label_clients({"agent-1": "kitchen"})
    assert store.save_evaluation(run, opinions(0, {2: 0.9, 1: 0.3}))
    assert store.save_evaluation(run, opinions(1, {1: 0.1}))
    read = store.read.evaluations
    first, second = read.rows(run)
    assert (first.round, first.slot, first.mode, first.digest) == (0, 1, "report", DIGEST)
    assert (first.metric, first.asked, first.answered, first.mean) == ("accuracy", 3, 2, 0.6)
    assert (first.reasons, first.seconds, second.mean) == ({"late": 1}, 0.25, 0.1)
    rows = read.opinions(run)
    found = [(row.round, row.client, row.score) for row in rows]
    assert found == [(0, 1, 0.3), (0, 2, 0.9), (1, 1, 0.1)]
    row = rows[0]
    assert (row.agent_id, row.label, row.edge_id) == ("agent-1", "kitchen", "edge-0")
    assert (row.samples, row.epsilon) == (10, 0.5)
    assert read.opinions(run, 1) == rows[2:]
    assert read.last_opinions(run) == {1: 0.1, 2: 0.9}
    assert store.read.ledger.verify().problems == ()


def test_volunteers_come_back_without_any_opinion(store: Store, run: str) -> None:
    store.save_evaluation(run, volunteers(3, [2, 0]))
    read = store.read.evaluations
    (found,) = read.rows(run)
    assert (found.mode, found.answered, found.mean, found.metric) == ("peers", 2, None, "")
    rows = [(row.client, row.agent_id, row.edge_id) for row in read.volunteers(run)]
    assert rows == [(0, "agent-0", "edge-0"), (2, "agent-2", "edge-0")]
    assert read.volunteers(run, 2) == []
    assert read.opinions(run) == []
    assert read.last_opinions(run) == {}
    assert store.read.ledger.verify().problems == ()


def test_a_model_is_evaluated_once_and_no_answer_is_an_evaluation(store: Store, run: str) -> None:
    assert store.save_evaluation(run, opinions(1, {}, reasons={"restart": 3}))
    assert not store.save_evaluation(run, opinions(1, {0: 0.5}))
    (found,) = store.read.evaluations.rows(run)
    assert (found.answered, found.mean, found.reasons) == (0, None, {"restart": 3})


@pytest.mark.parametrize(
    "found",
    [
        opinions(1, {0: 1.5}),
        opinions(1, {0: 0.5}, samples=np.zeros(1, dtype=np.int64)),
        opinions(1, {999: 0.5}),
        opinions(1, {0: 0.5}, asked=0),
    ],
)
def test_what_cannot_be_is_refused_whole(store: Store, run: str, found: BookOpinions) -> None:
    with pytest.raises(LedgerError, match="the ledger refuses this"):
        store.save_evaluation(run, found)
    assert store.read.evaluations.rows(run) == []
