"""A learnt world: the same by seed, drawn by its chances, and a file that is read strictly."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fedagent_task.errors import RecipeError
from fedagent_testbed.fit_world import fit_world
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import load_recipe, make_world, play
from fedagent_testbed.study.history import History
from fedagent_testbed.study.selection import SelectionStudy
from fedagent_testbed.worlds.learnt import BLOCK, Learnt, read_learnt, write_learnt

CLIENTS, EDGES, ROUNDS = 12, 3, 60
SETS = (f"clients={CLIENTS}", f"rounds.count={ROUNDS}", "exploration=0.5", "exploration_bound=100")


@pytest.fixture(scope="module")
def tape() -> Learnt:
    study = SelectionStudy(load_recipe("cocs-decisions", SETS), "random", 3)
    study.log = []
    for t in range(1, ROUNDS + 1):
        study.play_round(t, History("random", 3))
    return fit_world(study.log)


def recipe_of(file: Path, *sets: str) -> Study:
    keys = ("world=learnt", f"clients={CLIENTS}", f"edges={EDGES}", f"learnt.file={file}")
    return load_recipe("cocs-decisions", (*keys, *sets))


def written(tape: Learnt, folder: Path) -> Path:
    file = folder / "field.world"
    write_learnt(tape, file)
    return file


def test_a_file_is_read_as_it_was_written(tape: Learnt, tmp_path: Path) -> None:
    found = read_learnt(written(tape, tmp_path))
    assert (found.names, found.rounds) == (tape.names, ROUNDS)
    assert found.features.tobytes() == tape.features.tobytes()
    assert found.beta.tolist() == tape.beta.tolist()


def test_it_is_the_same_by_seed_and_begins_as_the_run_began(tape: Learnt, tmp_path: Path) -> None:
    recipe = recipe_of(written(tape, tmp_path))
    one, two, other = (make_world(recipe, seed) for seed in (5, 5, 6))
    differ = 0
    for t in range(1, 4 * BLOCK):
        views = [world.view(t) for world in (one, two, other)]
        truths = [view.truth for view in views]
        assert truths[0] is not None
        assert truths[1] is not None
        assert truths[2] is not None
        assert truths[0].arrives.tobytes() == truths[1].arrives.tobytes()
        assert views[0].pair_features.tobytes() == views[1].pair_features.tobytes()
        if t <= BLOCK:
            assert views[0].pair_features.tobytes() == views[2].pair_features.tobytes()
            assert views[0].client_price.tolist() == tape.price[t - 1].tolist()
        differ += truths[0].arrives.tobytes() != truths[2].arrives.tobytes()
    assert differ > BLOCK


@pytest.mark.parametrize("together", [(0.0, 0.0, 0.0), (0.4, 0.4, 0.9)])
def test_orders_are_in_time_as_often_as_their_chances_say(
    tape: Learnt, tmp_path: Path, together: tuple[float, ...]
) -> None:
    file = written(replace(tape, together=np.array(together)), tmp_path)
    read_learnt.cache_clear()
    worlds = [make_world(recipe_of(file), seed) for seed in range(40)]
    came, chance = [], []
    for world in worlds:
        for t in range(1, 31):
            view = world.view(t)
            assert view.truth is not None
            ended = world.play(view, np.arange(len(view.pair_client)))
            assert ended.X.tolist() == view.truth.arrives.tolist()
            assert (ended.tau_s[ended.X] <= view.deadline_s).all()
            assert not (ended.void & ended.X).any()
            came.append(ended.X.mean())
            chance.append(view.truth.chance.mean())
    assert abs(np.mean(came) - np.mean(chance)) < 0.02


def test_policies_play_in_it(tape: Learnt, tmp_path: Path) -> None:
    recipe = recipe_of(written(tape, tmp_path), "rounds.count=40", "budget.per_edge=6")
    wins = {name: play(recipe, name, 0)["wins"].mean() for name in ("oracle", "linucb", "random")}
    assert wins["oracle"] > wins["linucb"] > wins["random"] > 0


@pytest.mark.parametrize("damage", ["cut", "shape", "outside", "plain", "missing", "huge"])
def test_a_damaged_file_is_one_sentence(
    tape: Learnt, tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(tape, tmp_path)
    arrays = load_file(file)
    match damage:
        case "cut":
            file.write_bytes(file.read_bytes()[:-100])
        case "shape":
            save_file({**arrays, "price": arrays["price"][:, 1:]}, file, metadata=header(tape))
        case "outside":
            arrays["pair_client"][3] = CLIENTS
            save_file(arrays, file, metadata=header(tape))
        case "plain":
            save_file(arrays, file)
        case "missing":
            file.unlink()
        case "huge":
            monkeypatch.setattr("fedagent_testbed.worlds.learnt.MOST_BYTES", 1000)
    read_learnt.cache_clear()
    with pytest.raises(RecipeError, match=r"learnt\.file"):
        make_world(recipe_of(file), 0)


def header(tape: Learnt) -> dict[str, str]:
    import json

    plain = {"names": tape.names, "deadline_s": 3.0, "model_bytes": 0, "tau_sd": 0.1}
    return {"fedagent-world": json.dumps(plain)}


def test_another_number_of_devices_is_refused(tape: Learnt, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="clients"):
        make_world(recipe_of(written(tape, tmp_path), "clients=13"), 0)
