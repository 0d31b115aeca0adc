"""Runs of models that travel as graphs: what they begin from, and what devices get once."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.errors import StoreDamagedError
from fedagent_coordinator.held_out import held_out
from fedagent_protocol import messages as m
from fedagent_task.recipe.files import RecipeFile, open_recipe
from fedagent_task.scoring import graph as graph_scoring
from tests.fakes.coordinator_site import Site, toy_edges
from tests.fakes.graph_tasks import dense_task, written

SETS = ("rounds.count=2", "rounds.deadline_s=2", "evaluation.dataset=none")
SCORED = ("evaluation.dataset=digits-test",)


def read(folder: Path, *, frozen: bool = False, sets: tuple[str, ...] = SETS) -> RecipeFile:
    return open_recipe(written(folder, dense_task(frozen=frozen)), sets)


def site_of(folder: Path, file: RecipeFile) -> Site:
    return Site(folder / "data", file.recipe, toy_edges(file.recipe), task=file.task)


def test_a_run_begins_from_the_tensors_of_its_task_and_goes_to_its_end(tmp_path: Path) -> None:
    file = read(tmp_path)
    site = site_of(tmp_path, file)
    site.run()
    assert site.done == "rounds"
    first = next(event.fields for event in site.events if event.name == "model")
    assert first["digest"] != file.recipe.model.first, "rounds made another of it"
    models = site.store.database.read.models.rows(site.store.run.run_id)
    assert models[-1].digest == file.recipe.model.first
    site.close()


def test_a_resumed_run_has_its_first_model_and_one_without_it_is_lost(tmp_path: Path) -> None:
    file = read(tmp_path)
    site = site_of(tmp_path, file)
    site.open()
    site.close()
    path = site.folder / "models" / file.recipe.model.first
    path.write_bytes(b"damaged")
    assert site.open().run.resumed
    site.close()
    path.unlink()
    site.task = None
    with pytest.raises(StoreDamagedError):
        site.open()


def test_what_devices_get_once_is_kept_and_sent_by_credit(tmp_path: Path) -> None:
    file = read(tmp_path, frozen=True)
    model = file.recipe.model
    assert file.task is not None
    site = site_of(tmp_path, file)
    site.run()
    blobs, keep = site.store.blobs, site.store.database.read.models.to_keep()
    assert model.once in keep
    blobs.collect(keep)
    assert blobs.get(model.once) == file.task.once_bytes
    edge = site.edges[0]
    site.sent.clear()
    site.up(edge, m.Need(run=site.store.run.run_id, digest=model.once, ranges=((0, 1),)))
    site.kernel.run(until=site.kernel.now + 1)
    (chunk,) = [s.message for s in site.sent if isinstance(s.message, m.Chunk)]
    assert (chunk.digest, chunk.data) == (model.once, file.task.once_bytes)
    site.up(edge, m.Need(run=site.store.run.run_id, digest=model.once, ranges=((1, 9),)))
    site.kernel.run(until=site.kernel.now + 1)
    assert site.engine.counters["bad_chunk"] == 1
    site.close()


@pytest.mark.parametrize("frozen", [False, True])
def test_a_held_out_set_scores_by_torch(tmp_path: Path, *, frozen: bool) -> None:
    pytest.importorskip("torch")
    file = read(tmp_path, frozen=frozen, sets=SCORED)
    assert file.task is not None
    scored = held_out(file.recipe, file.task)
    assert scored is not None
    found = scored.evaluate(file.task.first_bytes)
    weights = {**file.task.first, **file.task.once}
    logits = scored.x @ weights["weight"].T + weights["bias"]
    right = (logits.argmax(axis=1) == scored.y).mean()
    shifted = logits - logits.max(axis=1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    assert found.accuracy == pytest.approx(right)
    assert found.loss == pytest.approx(-logs[np.arange(len(logs)), scored.y].mean(), rel=1e-5)


def test_without_torch_and_graph_nothing_is_scored_and_a_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    file = read(tmp_path, sets=SCORED)
    monkeypatch.setattr(graph_scoring, "find_spec", lambda _name: None)
    assert held_out(file.recipe, file.task) is None
    assert "not scored here" in caplog.text
