"""What people call an agent waits for the agent's index, and gives it none."""

from pathlib import Path

import pytest

from fedagent_coordinator.books import store as module
from fedagent_coordinator.books.store import Store
from tests.fakes.stored_runs import begun


def test_a_label_waits_for_its_index_and_gives_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 2)
    with Store(tmp_path) as store:
        run_id = begun(store).run_id
        indices = store.indices(run_id)
        before = indices.sizes()[0]
        indices.label_clients({"lost": "a", "kitchen-id": "kitchen", "hall-id": "hall"})
        assert indices.sizes()[0] == before
        assert indices.clients(["kitchen-id", "lost"]).tolist() == [before, before + 1]
        labels = dict(
            store.read._db.execute(
                "SELECT agent_id, label FROM clients WHERE run_id = ? AND idx >= ?",
                (run_id, before),
            ).fetchall()
        )
        assert labels == {"kitchen-id": "kitchen", "lost": ""}
