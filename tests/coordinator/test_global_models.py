"""Global models: the mean of edge models, strategies that act at the coordinator, the held-out."""

import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_coordinator import held_out as scoring
from fedagent_coordinator.core.effects import Merge, Merged, MergePart
from fedagent_coordinator.held_out import held_out
from fedagent_coordinator.merged_models import merge_files
from fedagent_coordinator.run_settings import aggregation_of, model_manifest
from fedagent_node.blobs import BlobStore
from fedagent_protocol.tensors import Manifest, decode_tensors, digest_of, encode_tensors
from fedagent_task import models
from fedagent_task.aggregation import CONTROL
from fedagent_task.aggregation.edges import LARGEST_LOSS
from fedagent_task.errors import DatasetError, RecipeError, TaskFormatError
from fedagent_task.recipe.spec import Recipe
from tests.fakes.coordinator_site import Site, recipe, toy_edges
from tests.fakes.strategy_chain import chain, check_chain

YOGI = ("aggregation.name=fedyogi", "aggregation.params.eta=0.5")


def site_of(folder: Path, given: Recipe) -> Site:
    edges = toy_edges(given, 2)
    for edge in edges:
        edge.manifest = model_manifest(given)
    return Site(folder, given, edges)


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
    merge = Merge(1, (MergePart(far, 1.0, 1.0, "edge-0"),), 0, base=base)
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


SHAPES = {"bias": (3,), "weight": (3, 4)}
MANIFEST = Manifest.of({name: np.zeros(s, np.float32) for name, s in SHAPES.items()})


def model(seed: int, scale: float = 1.0) -> bytes:
    rng = np.random.default_rng(seed)
    return encode_tensors(
        {n: (scale * rng.normal(size=s)).astype(np.float32) for n, s in SHAPES.items()}
    )


def merged(blobs: BlobStore, parts: list[bytes], weights: list[float]) -> Merged:
    for data in parts:
        blobs.put(data)
    pairs = zip(map(digest_of, parts), weights, strict=True)
    models = tuple(MergePart(digest, by, by, digest) for digest, by in pairs)
    return merge_files(blobs, MANIFEST, Merge(1, models, 0))


@settings(max_examples=30)
@given(weights=st.lists(st.floats(1e-3, 1e9), min_size=2, max_size=5), scale=st.floats(1e-3, 1e30))
def test_it_is_the_weighted_mean_in_float64(weights: list[float], scale: float) -> None:
    parts = [model(i, scale) for i in range(len(weights))]
    with tempfile.TemporaryDirectory() as folder:
        blobs = BlobStore(Path(folder))
        got = decode_tensors(blobs.get(merged(blobs, parts, weights).digest), MANIFEST)
    for name in SHAPES:
        stack = np.stack([decode_tensors(d, MANIFEST)[name].astype(np.float64) for d in parts])
        want = np.average(stack, axis=0, weights=weights)
        assert np.allclose(got[name].astype(np.float64), want, rtol=1e-6, atol=1e-6 * scale)


def test_models_that_do_not_fit_are_left_out_and_one_that_remains_is_the_mean(
    tmp_path: Path,
) -> None:
    good, blobs = model(1), BlobStore(tmp_path)
    nan = encode_tensors({n: np.full(s, np.nan, np.float32) for n, s in SHAPES.items()})
    other = encode_tensors({"weight": np.zeros((3, 4), np.float32)})
    found = merged(blobs, [nan, good, other, b"garbage"], [1.0] * 4)
    assert found.digest == digest_of(good)
    assert found.refused[digest_of(nan)] == "non_finite"
    assert found.refused[digest_of(other)].startswith("manifest_mismatch")
    assert len(found.refused) == 3
    assert merged(blobs, [nan], [1.0]).digest == ""


def test_the_held_out_set_evaluates_a_model() -> None:
    given_recipe = recipe()
    evaluate = held_out(given_recipe)
    assert evaluate is not None
    start = models.create(given_recipe.model).init(3)
    found = evaluate.evaluate(encode_tensors(start))
    # A fifth is for judging edges, in eight parts.
    assert found.count + sum(len(y) for _, y in evaluate.judging) == 359
    assert evaluate.judge(start).mean() == pytest.approx(found.loss, rel=0.05)
    whole = held_out(recipe("aggregation.robust=none"))
    assert whole is not None
    assert len(whole.y) == 359
    assert found.accuracy is not None
    assert 0.0 <= found.accuracy < 0.5
    assert held_out(recipe("evaluation.dataset=none")) is None
    with pytest.raises(DatasetError, match="features"):
        held_out(recipe("model.features=63"))


@pytest.mark.parametrize(
    ("size", "judging"), [(199, 0), (200, 40), (204, 40), (5000, 200)], ids=str
)
@pytest.mark.parametrize("in_turn", [False, True])
def test_samples_that_judge_are_of_all_labels_however_the_file_is_ordered(
    tmp_path: Path, size: int, judging: int, *, in_turn: bool
) -> None:
    path, y = tmp_path / "test.npz", np.arange(size) % 10
    x = np.arange(64.0 * size).reshape(size, 64)
    np.savez(path, x=x, y=y if in_turn else np.sort(y))
    found = held_out(recipe(f"evaluation.dataset={path}"))
    assert found is not None
    judged = [row for part, _ in found.judging for row in part[:, 0].tolist()]
    assert len(judged) == judging
    assert len({*judged, *found.x[:, 0].tolist()}) == judging + len(found.y) == size
    assert judging == 0 or len({*np.concatenate([labels for _, labels in found.judging])}) == 10


def test_a_model_that_cannot_be_computed_is_as_bad_as_can_be(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(*_: object) -> None:
        raise TaskFormatError("onnx", "the graph does not run on the model")

    found, start = held_out(recipe()), models.create(recipe().model).init(3)
    assert found is not None
    monkeypatch.setattr(scoring, "evaluation_of", refuses)
    assert (found.judge(start) == LARGEST_LOSS).all()
