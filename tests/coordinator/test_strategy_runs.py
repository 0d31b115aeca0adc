"""Strategies that act at the coordinator: what is committed, killed and gone on with."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.store import Store
from fedagent_coordinator.core.effects import Merge
from fedagent_coordinator.merged_models import merge_files
from fedagent_coordinator.run_settings import aggregation_of, model_manifest
from fedagent_node.blobs import BlobStore
from fedagent_protocol.tensors import decode_tensors, encode_tensors
from fedagent_task.aggregation import CONTROL
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import Recipe
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.strategy_chain import chain, check_chain

YOGI = ("aggregation.name=fedyogi", "aggregation.params.eta=0.5")


def site_of(folder: Path, given: Recipe, kill_at: str = "", kill_hit: int = 2) -> Site:
    edges = toy_edges(given, 2)
    for edge in edges:
        edge.manifest = model_manifest(given)
    return Site(folder, given, edges, kill_at=kill_at, kill_hit=kill_hit)


@pytest.mark.parametrize("point", ["settled", "model.before-commit", "model.committed"])
def test_a_kill_loses_no_step_and_does_none_twice(tmp_path: Path, point: str) -> None:
    given = recipe(*YOGI)
    whole = site_of(tmp_path / "whole", given)
    whole.run()
    whole.close()
    # The first of these is of the model that the run begins with.
    killed = site_of(tmp_path / "killed", given, point, 3 if point.startswith("model.") else 2)
    killed.run()
    killed.close()
    assert (whole.kills, killed.kills) == (0, 1)
    wanted = check_chain(tmp_path / "whole", given)
    found = check_chain(tmp_path / "killed", given)
    assert len(wanted) == 5
    assert all(state for _, _, state in wanted[1:])
    with Store(tmp_path / "whole") as store:
        kept = store.read.models.to_keep(last=1)
    assert [state in kept for _, _, state in wanted[1:]] == [False, False, False, True]
    if point == "model.committed":
        # What was committed is all that there is to go on from: the same models to the bit.
        assert found == wanted
    else:
        assert found[:2] == wanted[:2]


def test_scaffold_keeps_its_control_variates_in_the_model(tmp_path: Path) -> None:
    given = recipe("aggregation.name=scaffold")
    site = site_of(tmp_path, given)
    site.run()
    site.close()
    models = check_chain(tmp_path, given)
    blobs, manifest = BlobStore(tmp_path / "models"), model_manifest(given)
    controls = [
        decode_tensors(blobs.get(digest), manifest)[CONTROL + "weight"] for _, digest, _ in models
    ]
    assert not controls[0].any()
    assert all((one != other).any() for one, other in pairwise(controls))
    end = next(event for event in site.events if event.name == "end")
    assert isinstance(end.fields["accuracy"], float)


def test_a_lost_state_begins_anew_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    given = recipe(*YOGI, "rounds.count=2")
    site = site_of(tmp_path, given)
    site.run()
    site.close()
    state = chain(tmp_path)[-1][2]
    (tmp_path / "models" / state).write_bytes(b"damaged")
    site.more_rounds = 1
    site.done = ""
    site.kernel.now += 60.0
    site.run()
    site.close()
    assert "it starts again" in caplog.text
    assert len(chain(tmp_path)) == 4


def test_a_step_that_is_not_finite_leaves_the_model(tmp_path: Path) -> None:
    given = recipe("aggregation.name=fedavgm", "aggregation.params.eta=1000.0")
    manifest, blobs = model_manifest(given), BlobStore(tmp_path)

    def put(value: float) -> str:
        tensors = {spec.name: np.full(spec.shape, value, np.float32) for spec in manifest.specs}
        return blobs.put(encode_tensors(tensors))

    base, far = put(0.0), put(3e38)
    merge = Merge(1, ((far, 1.0),), 0, base=base)
    found = merge_files(blobs, manifest, merge, aggregation_of(given))
    assert found.digest == ""
    assert "not finite" in found.refused[base]


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("aggregation.name=scaffold", "rounds.merge_every=2"), "use 1"),
        (("aggregation.name=fedyogi", "placement.name=min-cost"), "take 'coordinator'"),
        (("aggregation.name=qfedavg", "placement.name=random"), "take 'coordinator'"),
        (("aggregation.name=fedbn",), "local="),
    ],
)
def test_what_does_not_go_together_is_refused_with_the_mend(
    sets: tuple[str, ...], words: str
) -> None:
    with pytest.raises(RecipeError, match=words):
        aggregation_of(recipe(*sets))
