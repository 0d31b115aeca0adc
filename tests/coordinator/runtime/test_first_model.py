"""A run begins from a model that somebody brings: checked, kept, and never two of them."""

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from fedagent_coordinator.errors import RefusedOptionError
from fedagent_coordinator.exits import exit_code
from fedagent_protocol.tensors import encode_tensors
from fedagent_task import models

from .harness import KilledError, Site, recipe, toy_edges

GIVEN = recipe()
SHAPES = {spec.name: spec.shape for spec in models.create(GIVEN.model).manifest().specs}


def tensors(value: float = 0.25) -> dict[str, npt.NDArray[np.float32]]:
    return {name: np.full(shape, value, np.float32) for name, shape in SHAPES.items()}


def brought(folder: Path, value: float = 0.25) -> str:
    """Write a model as another tool would, with a note beside its tensors."""
    path = folder / f"model-{value}.safetensors"
    safetensors.numpy.save_file(tensors(value), path, metadata={"by": "somebody"})
    return str(path)


def site(folder: Path, init: str, **options: object) -> Site:
    return Site(folder / "c", GIVEN, toy_edges(GIVEN), init=init, **options)  # type: ignore[arg-type] # a test's


def first_model(made: Site) -> bytes:
    store = made.open()
    assert store.run.progress.rounds_done == 0
    data = store.blobs.get(made.engine.models.digest)
    made.close()
    return data


def test_the_first_round_is_learnt_from_the_model(tmp_path: Path) -> None:
    init = brought(tmp_path)
    made = site(tmp_path, init)
    assert first_model(made) == encode_tensors(tensors())
    Path(init).unlink()
    # The run keeps it: the file is not needed any more, named or not.
    assert first_model(made) == encode_tensors(tensors())
    made.init = ""
    assert first_model(made) == encode_tensors(tensors())
    made.run()
    assert made.done == "rounds"


def test_a_model_of_an_earlier_run_is_named_by_its_digest(tmp_path: Path) -> None:
    former = site(tmp_path, "")
    former.run()
    digest = former.engine.models.digest
    former.close()
    later = site(tmp_path, digest[:12], new_run=True)
    store = later.open()
    assert later.engine.models.digest == digest
    assert store.database.read.run(store.run.run_id).origin == digest
    later.close()


@pytest.mark.parametrize("began", ["", "seed"])
def test_another_model_is_refused_on_resume(tmp_path: Path, began: str) -> None:
    first_model(site(tmp_path, "" if began else brought(tmp_path)))
    other = site(tmp_path, brought(tmp_path, 0.5))
    with pytest.raises(RefusedOptionError, match=r"--init .* began from .*--new-run"):
        other.open()


def test_a_crash_before_the_model_is_booked_does_not_put_the_seeds_in_its_place(
    tmp_path: Path,
) -> None:
    made = site(tmp_path, brought(tmp_path), kill_at="begin.marked")
    with pytest.raises(KilledError):
        made.open()
    made.init = ""
    assert first_model(made) == encode_tensors(tensors())


def write(path: Path, what: str) -> None:
    good = tensors()
    name = next(iter(good))
    match what:
        case "shape":
            good[name] = good[name][:1]
        case "nan":
            good[name].flat[3] = np.nan
        case "extra":
            good["more"] = np.zeros(2, np.float32)
        case "dtype":
            wide = {key: value.astype(np.float64) for key, value in good.items()}
            safetensors.numpy.save_file(wide, path)
            return
        case "pickle":
            path.write_bytes(pickle.dumps(good))
            return
        case "npz":
            with path.open("wb") as file:
                np.savez(file, **good)  # type: ignore[arg-type] # stub: names are options
            return
        case "large":
            path.write_bytes(bytes(2_000_000))
            return
        case "empty":
            path.write_bytes(b"")
            return
        case "folder":
            path.mkdir()
            return
        case _:
            return
    safetensors.numpy.save_file(good, path)


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "expected float32"),
        ("dtype", "expected float32"),
        ("extra", "expected nothing"),
        ("nan", "nan, inf"),
        ("pickle", "is no model of this recipe"),
        ("npz", "is no model of this recipe"),
        ("empty", "is no model of this recipe"),
        ("large", "at most"),
        ("folder", "no such file"),
        ("missing", "no such file"),
    ],
)
def test_what_is_no_model_of_this_recipe_is_refused_in_one_line(
    tmp_path: Path, what: str, says: str
) -> None:
    path = tmp_path / "m.safetensors"
    write(path, what)
    with pytest.raises(RefusedOptionError, match=says) as caught:
        site(tmp_path, str(path)).open()
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)
    assert exit_code(caught.value) == 2
    # Nothing was begun: the next start is a first one.
    opened = site(tmp_path, "").open()
    assert not opened.run.resumed
    opened.close()
