"""Which run a coordinator works on, and where it stands."""

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy

from fedagent_coordinator.__main__ import EXIT_CODES
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.errors import RefusedError, StoreDamagedError
from fedagent_coordinator.runs import RunFinishedError
from fedagent_protocol.tensors import encode_tensors
from fedagent_task import models
from tests.fakes.coordinator_site import KilledError, Site, check_books, recipe, toy_edges

# --- What keeps a coordinator from its start, said in words that name the hint


def interrupted(folder: Path, at: str) -> Site:
    """Return the site of a run that was killed at a crash point."""
    given = recipe()
    site = Site(folder, given, toy_edges(given), kill_at=at)
    site.run(until=30.0, stop=lambda: site.kills > 0)
    assert site.kills == 1
    return site


def model_file(site: Site) -> Path:
    site.open()
    digest = site.engine.run.models.digest
    site.close()
    return site.folder / "models" / digest


@pytest.mark.parametrize("damage", ["damaged", "missing"])
def test_a_lost_global_model_is_named_with_its_hint(tmp_path: Path, damage: str) -> None:
    site = interrupted(tmp_path, "committed")
    path = model_file(site)
    if damage == "damaged":
        data = bytearray(path.read_bytes())
        data[-5] ^= 0x40
        path.write_bytes(data)
    else:
        path.unlink()
    with pytest.raises(StoreDamagedError, match=rf"is {damage}; restore .*--new-run") as caught:
        site.open()
    assert next(code for kind, code in EXIT_CODES if isinstance(caught.value, kind)) == 32
    site.new_run = True
    site.open()
    site.close()


def test_the_first_model_is_made_again_from_the_seed(tmp_path: Path) -> None:
    site = interrupted(tmp_path, "reserved")
    path = model_file(site)
    whole = path.read_bytes()
    path.write_bytes(b"x" + whole[1:])
    site.open()
    site.close()
    assert path.read_bytes() == whole


# --- A run begins from a model that somebody brings


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
    data = store.blobs.get(made.engine.run.models.digest)
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
    digest = former.engine.run.models.digest
    former.close()
    later = site(tmp_path, digest[:12], new_run=True)
    store = later.open()
    assert later.engine.run.models.digest == digest
    assert store.database.read.run(store.run.run_id).origin == digest
    later.close()


@pytest.mark.parametrize("began", ["", "seed"])
def test_another_model_is_refused_on_resume(tmp_path: Path, began: str) -> None:
    first_model(site(tmp_path, "" if began else brought(tmp_path)))
    other = site(tmp_path, brought(tmp_path, 0.5))
    with pytest.raises(RefusedError, match=r"--init .* began from .*--new-run"):
        other.open()


def test_a_crash_before_the_model_is_booked_does_not_put_the_seeds_in_its_place(
    tmp_path: Path,
) -> None:
    made = site(tmp_path, brought(tmp_path), kill_at="begin.marked")
    with pytest.raises(KilledError):
        made.open()
    made.init = ""
    assert first_model(made) == encode_tensors(tensors())


def spoilt(what: str) -> bytes:
    bad = tensors()
    name = next(iter(bad))
    bad[name] = bad[name][:1] if what == "shape" else np.full_like(bad[name], np.nan)
    return {"pickle": pickle.dumps(bad), "large": bytes(2_000_000)}.get(
        what, safetensors.numpy.save(bad)
    )


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("shape", "expected float32"),
        ("nan", "nan, inf"),
        ("pickle", "is no model of this recipe"),
        ("large", "at most"),
        ("missing", "no such file"),
    ],
)
def test_what_is_no_model_of_this_recipe_is_refused_in_one_line(
    tmp_path: Path, what: str, says: str
) -> None:
    path = tmp_path / "m.safetensors"
    if what != "missing":
        path.write_bytes(spoilt(what))
    with pytest.raises(RefusedError, match=says) as caught:
        site(tmp_path, str(path)).open()
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)
    assert next(code for kind, code in EXIT_CODES if isinstance(caught.value, kind)) == 2
    # Nothing was begun: the next start is a first one.
    opened = site(tmp_path, "").open()
    assert not opened.run.resumed
    opened.close()


# --- A run that has ended goes on for more rounds


def ended(folder: Path, *sets: str) -> str:
    """Bring a run of four rounds to its end; return its id."""
    given = recipe(*sets)
    site = Site(folder, given, toy_edges(given))
    site.run()
    run = site.store.run.run_id
    site.close()
    return run


def going_on(folder: Path, more: int, *sets: str, kill_at: str = "", kill_hit: int = 1) -> Site:
    given = recipe(*sets)
    return Site(
        folder, given, toy_edges(given), more_rounds=more, kill_at=kill_at, kill_hit=kill_hit
    )


@pytest.mark.parametrize(
    ("point", "hit"), [("extend.committed", 1), ("settled", 2), ("reported-result", 1)]
)
def test_a_start_with_the_option_that_is_repeated_after_a_crash_adds_nothing(
    tmp_path: Path, point: str, hit: int
) -> None:
    ended(tmp_path)
    site = going_on(tmp_path, 3, kill_at=point, kill_hit=hit)
    site.run()
    assert (site.kills, site.done) == (1, "rounds")
    check_books(site, 7)


def test_a_start_without_the_option_goes_on_to_the_new_end(tmp_path: Path) -> None:
    ended(tmp_path)
    site = going_on(tmp_path, 3)
    site.open()
    site.close()
    site.more_rounds = 0
    site.run()
    check_books(site, 7)
    with pytest.raises(RunFinishedError, match=r"after 7 rounds .*--more-rounds N.*--new-run"):
        site.open()
    site.more_rounds = 2
    site.done = ""
    site.run()
    check_books(site, 9)


def test_without_a_run_of_this_recipe_there_is_nothing_to_go_on_with(tmp_path: Path) -> None:
    ended(tmp_path)
    with pytest.raises(RefusedError, match=r"--more-rounds: .*no run of this recipe.*--set"):
        going_on(tmp_path, 3, "rounds.deadline_s=2.5").open()
    with Books(tmp_path) as store:
        assert len(store.read.runs()) == 1


def test_the_budget_stays_what_it_was(tmp_path: Path) -> None:
    ended(tmp_path, "budget.total=15")
    site = going_on(tmp_path, 3, "budget.total=15")
    site.run()
    assert site.done == "budget"
    check_books(site, 5)
    site.more_rounds = 0
    with pytest.raises(RunFinishedError) as caught:
        site.open()
    assert "--new-run" in str(caught.value)
    assert "--more-rounds" not in str(caught.value)
    with Books(tmp_path) as store:
        assert store.read.balance(store.read.run().run_id).granted_micro == 15_000_000
