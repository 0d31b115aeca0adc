"""The disk of a coordinator: what a kill leaves, and what the next process makes of it."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

from fedagent_coordinator import policies
from fedagent_coordinator import store as run_store
from fedagent_coordinator.books import archive
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.decision import Learning
from fedagent_node.effects import Received
from fedagent_protocol import messages as m
from tests.fakes.coordinator_site import Site, check_books, recipe, toy_edges
from tests.fakes.toy_edge import ToyEdge, arrived


def test_snapshots_go_by_the_rounds_that_were_learnt_whatever_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_store, "SNAPSHOT_EVERY", 3)
    given = recipe("rounds.count=9")
    site = Site(tmp_path, given, toy_edges(given, 2), kill_at="reserved", kill_hit=3)
    site.run()
    site.close()
    assert site.kills == 1
    with Books(tmp_path) as store:
        rows = store.connection.execute("SELECT round FROM snapshots ORDER BY round")
        assert [row[0] for row in rows] == [7, 10], "the newest two: round 3 was void"


@pytest.mark.parametrize("point", ["prune.dropped", "pruned"])
def test_a_running_coordinator_prunes_and_restarts_on_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    monkeypatch.setattr(run_store, "SNAPSHOT_EVERY", 1)
    monkeypatch.setattr(run_store, "CLOSE_ROUNDS", 1)
    monkeypatch.setattr(archive, "NEVER", 0)
    given = recipe("policy.name=cocs")
    site = Site(tmp_path, given, toy_edges(given), kill_at=point, kill_hit=2, keep_rounds=1)
    site.run()
    assert site.kills == bool(point)
    site.close()
    with Books(tmp_path) as store:
        run = store.read.run().run_id
        assert store.read.ledger.verify().problems == ()
        assert store.read.progress(run).rounds_done == 4
        with store.read.whole(run) as whole:
            assert [row.state for row in whole.rounds(run)].count("done") == 4
        assert store.read.closed_until(run) >= 2
        assert store.read.closed_until(run) < store.read.last_round(run)
        assert store.read.judged(run)
        policy = Learning(policies.create("cocs", **site.recipe.policy.params))
        store.read.restore(run, policy)


def test_edges_go_on_from_what_the_books_know_of_them(tmp_path: Path) -> None:
    given = recipe("rounds.merge_every=4")
    site = Site(tmp_path, given, toy_edges(given, 2), kill_at="settled", kill_hit=3)
    site.run()
    check_books(site, 4)
    offers = [send for send in site.sent if isinstance(send.message, m.GlobalModel)]
    # One for each edge at the begin, and the merged one at the end: none was reset.
    assert len(offers) == 4


# --- What an edge has learnt weighs the same after a restart


SETS = ("rounds.count=9", "rounds.merge_every=9")


def until_round(site: Site, number: int) -> None:
    """Run until the books have settled a round."""

    def settled() -> bool:
        events = [e.fields["round"] for e in site.events if e.name == "round"]
        return bool(events) and int(str(events[-1])) >= number

    site.run(until=60.0, stop=settled)
    assert settled()


def lived(site: Site) -> dict[str, tuple[str, float]]:
    """Return model and weight of each edge that has learnt, as the engine has it."""
    return {
        edge.id: (edge.expected, edge.window.weight)
        for edge in site.engine.run.edges.by_id.values()
        if edge.window.weight > 0
    }


def read_back(site: Site) -> dict[str, tuple[str, float]]:
    """Return the same by the books, as another process finds it."""
    site.close()
    windows = site.open().run.progress.windows
    site.close()
    return {edge: (one.model, one.weight) for edge, one in windows.items() if one.weight}


def test_what_an_edge_lost_with_its_model_stays_given_up(tmp_path: Path) -> None:
    given = recipe(*SETS)
    site = Site(tmp_path, given, toy_edges(given, 2))
    lost = site.edges[1]
    original = lost.receive

    def forget(message: m.CoordinatorToEdge, now: float) -> list[m.EdgeToCoordinator]:
        if isinstance(message, m.ReportReceipt) and message.round == 2:
            original(message, now)
            lost.restart(forget_model=True)
            return [lost.hello()]
        return original(message, now)

    lost.receive = forget  # type: ignore[method-assign] # the test's forgetful edge
    until_round(site, 4)
    before = lived(site)
    assert before["edge-1"][1] < before["edge-0"][1]
    assert read_back(site) == before


@pytest.mark.parametrize("merge_every", [1, 2])
def test_what_a_failed_merge_did_not_take_stays_given_up(
    tmp_path: Path, merge_every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = ("rounds.count=9", f"rounds.merge_every={merge_every}", "rounds.merge_timeout_s=1")
    given = recipe(*sets)
    site = Site(tmp_path, given, toy_edges(given))
    monkeypatch.setattr("tests.fakes.toy_edge.PIECE_BYTES", 0)  # none comes with the report
    monkeypatch.setattr(ToyEdge, "_serve", lambda _edge, _need: [])
    until_round(site, 2)
    assert site.store.database.read.models.last(site.store.run.run_id).round == 0  # type: ignore[union-attr] # there is one
    assert lived(site) == {}
    assert read_back(site) == {}


def test_a_report_that_comes_again_hears_whom_the_books_do_not_pay(tmp_path: Path) -> None:
    given = recipe(*SETS)
    site = Site(tmp_path, given, toy_edges(given))
    until_round(site, 2)
    edge = site.edges[0]
    assert edge.last is not None
    paid = edge.last.outcomes
    more = structs.replace(paid[0], agent="stranger")
    again = structs.replace(edge.last, round=2, outcomes=(*paid, more))
    assert site.driver is not None
    site.driver.receive(Received(edge.id, again, "edges", site.kernel.now))
    said = [one.message for one in site.sent if isinstance(one.message, m.ReportReceipt)]
    assert [(one.round, one.unpaid, one.too_late) for one in said[-2:]] == [
        (2, (), False),
        (2, ("stranger",), False),
    ]


# --- What people call an agent comes from its own words to the table of devices


def test_the_name_of_an_agent_is_in_the_table_of_devices(tmp_path: Path) -> None:
    given = recipe("rounds.count=2")
    site = Site(tmp_path, given, toy_edges(given))
    site.edges[0].agents[0].name = "kitchen"
    site.edges[0].agents[1].name = "hall\x1b[31m"
    site.run()
    site.close()
    with open_reader(tmp_path) as reader:
        devices = {row.agent: row.label for row in reader.devices(reader.run().run_id)}
    assert devices == {"agent-0-0": "kitchen", "agent-0-1": "hall [31m", "agent-0-2": ""}
    # Once in two rounds: the edge, its name, the agents, and theirs.
    assert site.passed.count("index.committed") == 4


# --- A run that learns a number


LINEAR = ("model.kind=linear", "model.features=2", "model.classes=0", "data.scale=1.0")


def test_the_best_model_of_a_regression_is_that_of_least_error(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(50, 2)).astype(np.float32)
    np.savez(tmp_path / "room.npz", x=x, y=x @ np.array([2.0, -1.0]) + 20.0)
    given = recipe(*LINEAR, f"evaluation.dataset='{tmp_path}/room.npz'")
    site = Site(tmp_path / "c", given, toy_edges(given))
    site.run()
    site.close()
    end = site.events[-1].fields
    said = [event.fields for event in site.events if event.name == "model"]
    errors = [float(str(one["rmse"])) for one in said]
    assert len(said) == 4
    assert min(errors) > 0
    assert all(one["accuracy"] is None for one in said)
    assert (end["accuracy"], end["primary_metric"]) == (None, "rmse")
    result = json.loads((tmp_path / "c" / "result.json").read_text())
    metrics = result["metrics"]
    assert end["metrics"] == metrics
    assert metrics["rmse"] == errors[-1]
    assert metrics["loss"] == pytest.approx(metrics["rmse"] ** 2) == end["loss"]
    assert 0 < metrics["mae"] <= metrics["rmse"]
    assert (result["best"], result["best_accuracy"]) == (min(errors), None)
    with Books(tmp_path / "c") as store:
        best = store.read.models.best(store.read.run().run_id)
        assert best is not None
        assert best.round == 1 + errors.index(min(errors)) == result["best_round"]
        assert best.digest in store.read.models.to_keep(last=1)


def test_a_stop_keeps_what_was_measured_of_the_newest_model(tmp_path: Path) -> None:
    given = recipe("rounds.count=9")
    site = Site(tmp_path, given, toy_edges(given))
    site.run(until=60.0, stop=lambda: any(event.name == "model" for event in site.events))
    site.close()
    with Books(tmp_path) as store:
        (found,) = store.read.models.metrics(store.read.run().run_id, last=1).values()
    assert "accuracy" in found


def test_without_held_out_samples_a_run_is_primary_metric_its_training(tmp_path: Path) -> None:
    given = recipe(*LINEAR, "evaluation.dataset=none")
    edges = toy_edges(given, agents=1)
    edges[0].agents[0].outcome = arrived("agent-0-0", loss=8.0)
    site = Site(tmp_path, given, edges)
    site.run()
    site.close()
    end = site.events[-1].fields
    assert (end["accuracy"], end["loss"], end["primary_metric"]) == (None, None, "train_error")
    assert end["metrics"] == {"train_loss": 8.0, "train_error": 4.0}
    with Books(tmp_path) as store:
        rows = store.read.rounds(store.read.run().run_id)
        assert all(math.isclose(row.metrics["train_error"], 4.0) for row in rows)
        assert store.read.models.rows(store.read.run().run_id)[0].metrics["train_loss"] == 8.0
