"""Opinions and volunteers in the books: once per round, never changed, read back as they came."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.effects import BookOpinions
from fedagent_coordinator.errors import LedgerError
from tests.fakes.stored_runs import begun, opinions, volunteers

DIGEST = "d" * 64


def people(store: Store) -> str:
    """Begin a run whose clients have indices, one of them a name; return its id."""
    run_id = begun(store).run_id
    store.indices(run_id).label_clients({"agent-1": "kitchen"})
    return run_id


def test_opinions_come_back_by_client_with_their_mean(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run_id = people(store)
        assert store.save_evaluation(run_id, opinions(0, {2: 0.9, 1: 0.3}))
        assert store.save_evaluation(run_id, opinions(1, {1: 0.1}))
        first, second = store.read.evaluations.rows(run_id)
        assert (first.round, first.slot, first.mode, first.digest) == (0, 1, "report", DIGEST)
        assert (first.metric, first.asked, first.answered, first.mean) == ("accuracy", 3, 2, 0.6)
        assert (first.reasons, first.seconds) == ({"late": 1}, 0.25)
        assert second.mean == 0.1
        rows = store.read.evaluations.opinions(run_id)
        assert [(row.round, row.client, row.score) for row in rows] == [
            (0, 1, 0.3),
            (0, 2, 0.9),
            (1, 1, 0.1),
        ]
        row = rows[0]
        assert (row.agent_id, row.label, row.edge, row.edge_id) == (
            "agent-1",
            "kitchen",
            0,
            "edge-0",
        )
        assert (row.samples, row.epsilon) == (10, 0.5)
        assert store.read.evaluations.opinions(run_id, 1) == rows[2:]
        assert store.read.evaluations.last_opinions(run_id) == {1: 0.1, 2: 0.9}
        assert store.read.ledger.verify().problems == ()
    with open_reader(tmp_path) as reader:
        assert len(reader.evaluations.rows(run_id)) == 2


def test_volunteers_come_back_without_any_opinion(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run_id = people(store)
        store.save_evaluation(run_id, volunteers(3, [2, 0]))
        (evaluated,) = store.read.evaluations.rows(run_id)
        assert (evaluated.mode, evaluated.answered, evaluated.mean, evaluated.metric) == (
            "peers",
            2,
            None,
            "",
        )
        rows = store.read.evaluations.volunteers(run_id)
        assert [(row.client, row.agent_id, row.edge_id) for row in rows] == [
            (0, "agent-0", "edge-0"),
            (2, "agent-2", "edge-0"),
        ]
        assert store.read.evaluations.volunteers(run_id, 2) == []
        assert store.read.evaluations.opinions(run_id) == []
        assert store.read.ledger.verify().problems == ()


def test_a_model_is_evaluated_once_and_nobody_having_answered_is_an_evaluation(
    tmp_path: Path,
) -> None:
    with Store(tmp_path) as store:
        run_id = people(store)
        assert not store.read.evaluations.exists(run_id, 1)
        assert store.save_evaluation(run_id, opinions(1, {}, reasons={"restart": 3}))
        assert store.read.evaluations.exists(run_id, 1)
        assert not store.save_evaluation(run_id, opinions(1, {0: 0.5}))
        (evaluated,) = store.read.evaluations.rows(run_id)
        assert (evaluated.answered, evaluated.mean, evaluated.reasons) == (0, None, {"restart": 3})


@pytest.mark.parametrize(
    "found",
    [
        opinions(1, {0: 1.5}),
        opinions(1, {0: 0.5}, samples=np.zeros(1, dtype=np.int64)),
        opinions(1, {999: 0.5}),
        opinions(1, {0: 0.5}, asked=0),
        opinions(1, {0: 0.5}, slot=0),
    ],
)
def test_what_cannot_be_is_refused_whole(tmp_path: Path, found: BookOpinions) -> None:
    with Store(tmp_path) as store:
        run_id = people(store)
        with pytest.raises(LedgerError, match="the ledger refuses this"):
            store.save_evaluation(run_id, found)
        assert store.read.evaluations.rows(run_id) == []
        assert store.read.evaluations.opinions(run_id) == []


@pytest.mark.parametrize("table", ["evaluations", "opinions", "volunteers"])
@pytest.mark.parametrize("verb", ["DELETE FROM {}", "UPDATE {} SET round = 9"])
def test_evaluations_refuse_to_change(tmp_path: Path, table: str, verb: str) -> None:
    with Store(tmp_path) as store:
        run_id = people(store)
        store.save_evaluation(run_id, opinions(1, {0: 0.5}))
        store.save_evaluation(run_id, volunteers(2, [0]))
        with pytest.raises(sqlite3.IntegrityError, match="can only be appended to"):
            store._db.connection.execute(verb.format(table))
