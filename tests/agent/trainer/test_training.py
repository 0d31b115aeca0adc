"""One training in-process: what fits, what is refused, what is on disk afterwards."""

from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.trainer.frames import Mask, Masked, Opened
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import decode_tensors, digest_of
from fedagent_task.models import create
from fedagent_task.privacy import accountant
from fedagent_task.privacy.accountant import deviation_of
from fedagent_task.recipe.spec import PrivacySpec
from fedagent_task.secure_aggregation.ring import MASKED, add_masks, ring_of, vector_of
from tests.fakes.trainer_bench import TrainerBench, demo

ROW = ",".join(["1"] * 64)


def test_an_update_is_complete_on_disk_and_named_by_its_digest(bench: TrainerBench) -> None:
    assert bench.open(demo(), "digits:labels=3+7,start=80,rate=0.001") == Opened(job=1)
    reply = bench.trained()
    body = bench.out.read_bytes()
    assert (digest_of(body), len(body)) == (reply.digest, reply.size)
    assert any(tensor.any() for tensor in bench.update().values())
    assert (reply.stats.num_samples, reply.stats.arrivals, reply.offset) == (80, 80, 80)
    assert reply.stats.iterations == 4
    assert 0 < reply.stats.seconds_per_iteration < reply.train_s
    assert sorted(path.name for path in bench.out.parent.iterdir()) == ["model", "update"]


@pytest.mark.parametrize(
    ("sets", "stream", "key", "detail"),
    [
        (
            ("model.features=63",),
            "digits",
            "model.features",
            "model.features: task wants 63, the stream has 64",
        ),
        (("model.classes=5",), "digits:labels=2+7", "model.classes", "the stream has 7"),
        (("model.kind=logistic", "model.classes=2"), "digits", "model.kind", "0 to 1"),
        ((), "csv:{csv}.none", "csv", "no such file"),
        ((), "digits:labels=11", "labels", "no sample with these labels"),
        ((), "digits:rate=x", "rate", "write rate=20"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused_by_key(
    tmp_path: Path, bench: TrainerBench, sets: tuple[str, ...], stream: str, key: str, detail: str
) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text(f"1,{ROW}\n")
    reply = bench.refused(demo(*sets), stream.format(csv=csv))
    assert reply.startswith(key)
    assert detail in reply
    assert str(tmp_path) not in reply  # others get it: where a file lies is not theirs
    bench.failed("not_open")


def test_a_model_that_is_not_the_tasks_is_no_base(bench: TrainerBench) -> None:
    bench.opened(demo())
    bench.failed("model", model=f"{bench.model}.none")
    bench.base(create(demo("model.classes=3", "seed=1").model).init(0))
    assert "expected" in bench.failed("model").detail
    weights = create(demo().model).init(0)
    weights["bias"][0] = np.nan
    bench.base(weights)
    assert "not finite" in bench.failed("model").detail
    assert not bench.out.exists()


def test_an_update_that_the_edge_would_reject_is_not_sent(bench: TrainerBench) -> None:
    bench.opened(demo("limits.norm=0.0001"))
    assert "limits.norm" in bench.failed("norm").detail
    bench.opened(demo("learner.rate=1000", "data.scale=1e30")).failed("diverged", iterations=50)
    assert bench.opened(demo("limits.max_samples=7")).trained().stats.num_samples == 7


def test_a_cancelled_training_leaves_nothing(bench: TrainerBench) -> None:
    bench.on(Trainer(lambda _job, _wait: True)).opened(demo(), "digits:rate=0.000001")
    assert bench.failed("cancelled").offset == 50
    assert not bench.out.exists()


def test_samples_that_do_not_fit_are_counted(tmp_path: Path, bench: TrainerBench) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text("".join(f"{ROW},{label}\n" for label in (1, 11, 0.5, 2)))
    reply = bench.opened(demo(), f"csv:{csv}").trained()
    assert (reply.stats.arrivals, reply.stats.num_samples) == (4, 2)
    assert reply.counters == {"unfit": 2}
    csv.write_text(f"{ROW},11\n" * 12 + "nonsense\n")
    failed = bench.opened(demo(), f"csv:{csv}").failed("no_data")
    assert failed.detail == "all samples were refused (bad_columns 1, unfit 12)"
    assert failed.counters == {"bad_columns": 1, "unfit": 12}


@pytest.mark.parametrize(
    ("labels", "note"),
    [
        ("12" * 20, "50 % of its samples do not fit: unfit label"),
        ("1" * 199 + "2", "1 % of its samples do not fit: unfit label"),
        ("1" * 30 + "x" * 10, "20 % of its samples do not fit: bad_label"),
        ("1" * 28 + "?" * 8 + "22", "30 % of its samples do not fit: bad_number, unfit label"),
        ("1" * 300 + "2" + "?" * 20, ""),
        ("12" * 14, ""),
    ],
)
def test_a_share_of_samples_that_do_not_fit_goes_up(
    tmp_path: Path, bench: TrainerBench, labels: str, note: str
) -> None:
    csv = tmp_path / "a.csv"
    lines = (f"{'?' if label == '?' else 1},1,{label}\n" for label in labels)
    csv.write_text("u,v,kind\n" + "".join(lines))
    two = (
        "model.kind=logistic",
        "model.classes=2",
        "model.features=2",
        "evaluation.dataset='none'",
    )
    assert bench.opened(demo(*two), f"csv:{csv}").trained().note == note


def test_a_full_disk_is_named_and_leaves_nothing_behind(bench: TrainerBench) -> None:
    bench.opened(demo())
    bench.out.symlink_to("/dev/full")
    assert bench.failed("disk").detail == "No space left on device"
    assert [path.name for path in bench.out.parent.iterdir()] == ["model"]


def test_a_mapped_model_is_the_same_model(
    bench: TrainerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large ones are; its pages are given back while it trains."""
    digests = []
    for least in (1 << 40, 1):
        monkeypatch.setattr("fedagent_agent.trainer.training.MAPPED_BYTES", least)
        bench.opened(demo(), "digits:start=80,rate=0.001")
        digests += [bench.trained().digest, bench.trained().digest]
    assert digests[:2] == digests[2:]


PRIVATE = ("privacy.mode=local", "rounds.weighting=uniform", "limits.norm=0", "privacy.clip=0.5")


@pytest.mark.parametrize(
    ("rows", "reason", "private", "plain"),
    [
        (
            f"{ROW},11\n" * 12,
            "no_data",
            "all samples were refused",
            "all samples were refused (unfit 12)",
        ),
        (
            f"{ROW},1\n" * 40,
            "diverged",
            "the update is not finite; lower learner.rate",
            "the update is not finite; lower learner.rate; out of proportion: ",
        ),
    ],
    ids=["counts", "note"],
)
def test_a_training_that_fails_tells_nothing_of_private_samples(
    tmp_path: Path, bench: TrainerBench, rows: str, reason: str, private: str, plain: str
) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    csv = tmp_path / "a.csv"
    csv.write_text(rows)
    strange = ("learner.rate=1000", "data.scale=1e30") if reason == "diverged" else ()
    bench.opened(demo(*PRIVATE, *strange), f"csv:{csv}")
    assert bench.failed(reason, iterations=50).detail == private
    bench.opened(demo(*strange), f"csv:{csv}")
    assert bench.failed(reason, iterations=50).detail.startswith(plain)


def test_a_private_update_is_clipped_and_noised_and_tells_nothing_beside(
    bench: TrainerBench,
) -> None:
    pytest.importorskip("opendp", reason="opendp is not installed")
    once = (*PRIVATE, "privacy.releases=1")
    bench.opened(demo(*once, "privacy.epsilon=100", "privacy.clip=0.0001"), "digits")
    told = bench.trained()
    quiet = np.concatenate([tensor.ravel() for tensor in bench.update().values()])
    assert np.linalg.norm(quiet) <= 0.01, (
        "what is left is a clip of next to nothing, and little noise"
    )
    assert (told.stats.num_samples, told.stats.arrivals) == (1, 0)
    assert (told.stats.loss, told.stats.score, told.stats.score_n, told.note) == (0, 0, 0, "")
    bench.opened(demo(*once, "privacy.epsilon=1"), "digits")
    bench.trained()
    loud = np.concatenate([tensor.ravel() for tensor in bench.update().values()])
    deviation = deviation_of(PrivacySpec(mode="local", epsilon=1.0, clip=0.5, releases=1))
    assert loud.std() == pytest.approx(deviation, rel=0.15)


def test_a_device_without_the_accountant_trains_for_nobody(
    bench: TrainerBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(accountant, "find_spec", lambda _: None)
    accountant._for_one.cache_clear()
    accountant.epsilon_of.cache_clear()
    bench.opened(demo(*PRIVATE), "digits")
    assert "[privacy]" in bench.failed("privacy").detail
    assert not bench.out.exists()


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_trainer_writes_the_masked_update_in_the_place_of_the_plain_one(
    bench: TrainerBench, weighting: str
) -> None:
    sets = ("secure_aggregation.minimum_cohort=3", f"rounds.weighting={weighting}")
    bench.opened(demo(*sets), "digits")
    bench.trained()
    plain = bench.update()
    seeds = ((b"a" * 32, 1), (b"b" * 32, -1))
    told = bench.trainer.answer(Mask(job=3, out=str(bench.out), weight=1, seeds=seeds))
    assert isinstance(told, Masked)
    data = bench.out.read_bytes()
    assert (told.digest, told.size) == (digest_of(data), len(data))
    limit = 1 if weighting == "uniform" else bench.task.limits.max_samples
    ring = ring_of(demo(*sets).secure_aggregation, limit)
    manifest = ring.manifest(create(bench.task.model).manifest())
    words = decode_tensors(data, manifest)[MASKED].view(ring.word).copy()
    add_masks(words, [(key, -sign) for key, sign in seeds], ring)
    assert np.array_equal(words, vector_of(plain, 1, ring))
