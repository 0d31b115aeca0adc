"""One training in-process: what fits, what is refused, what is on disk afterwards."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedagent_agent.trainer.frames import Failed, Open, Opened, Refused, Reply, Train, Trained
from fedagent_agent.trainer.training import Trainer, lacks_memory
from fedagent_protocol.tensors import decode_tensors, digest_of, encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe import parse_recipe, task_bytes
from fedagent_task.spec import Recipe

ROOT = Path(__file__).parents[3]


def _recipe(*sets: str) -> Recipe:
    return parse_recipe((ROOT / "deploy" / "recipes" / "demo.toml").read_text(), sets)


def _opened(
    *sets: str, stream: str = "digits", cancelled: bool = False, seed: int = 1
) -> tuple[Trainer, Reply]:
    trainer = Trainer(lambda _job, _wait: cancelled)
    body = task_bytes(_recipe(*sets))
    return trainer, trainer.answer(Open(job=1, task=body, stream=stream, seed=seed))


def _model_file(folder: Path, *sets: str) -> Path:
    path = folder / "model"
    path.write_bytes(encode_tensors(create(_recipe(*sets).model).init(0)))
    return path


def _train(trainer: Trainer, folder: Path, model: Path, iterations: int = 0) -> Reply:
    request = Train(job=2, model=str(model), out=str(folder / "update"), iterations=iterations)
    return trainer.answer(request)


def _failed(reply: Reply, reason: str) -> Failed:
    assert isinstance(reply, Failed)
    assert reply.reason == reason
    return reply


def test_an_update_is_complete_on_disk_and_named_by_its_digest(tmp_path: Path) -> None:
    trainer, opened = _opened(stream="digits:labels=3+7,start=80,rate=0.001")
    assert opened == Opened(job=1)
    reply = _train(trainer, tmp_path, _model_file(tmp_path))
    assert isinstance(reply, Trained)
    body = (tmp_path / "update").read_bytes()
    assert (digest_of(body), len(body)) == (reply.digest, reply.size)
    update = decode_tensors(body, create(_recipe().model).manifest())
    assert any(tensor.any() for tensor in update.values())
    assert (reply.stats.num_samples, reply.stats.arrivals, reply.offset) == (80, 80, 80)
    assert reply.stats.iterations == 4
    assert 0 < reply.stats.seconds_per_iteration < reply.train_s
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "update"]


def test_the_same_seed_gives_the_same_update(tmp_path: Path) -> None:
    model = _model_file(tmp_path)
    digests = []
    for seed in (1, 1, 2):
        trainer, _ = _opened(stream="digits:rate=0.001", seed=seed)
        reply = _train(trainer, tmp_path, model)
        assert isinstance(reply, Trained)
        digests.append(reply.digest)
    assert digests[0] == digests[1] != digests[2]


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
        ((), "csv:{csv}", "data.dtype", "task wants uint8, the stream has float64"),
        ((), "csv:{csv}.none", "csv", "no such file"),
        ((), "digits:labels=11", "labels", "no such sample"),
        ((), "digits:rate=x", "rate", "write rate=20"),
    ],
)
def test_a_stream_that_does_not_fit_is_refused_by_key(
    tmp_path: Path, sets: tuple[str, ...], stream: str, key: str, detail: str
) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text(",".join(["1"] * 65) + "\n")
    trainer, reply = _opened(*sets, stream=stream.format(csv=csv))
    assert isinstance(reply, Refused)
    assert reply.key == key
    assert detail in reply.detail
    _failed(_train(trainer, tmp_path, csv), "not_open")


def test_a_task_from_newer_software_is_refused() -> None:
    trainer = Trainer(lambda _job, _wait: False)
    reply = trainer.answer(Open(job=1, task=b"\x81\xa1x\x01", stream="digits", seed=0))
    assert isinstance(reply, Refused)


def test_a_model_that_is_not_the_tasks_is_no_base(tmp_path: Path) -> None:
    trainer, _ = _opened()
    _failed(_train(trainer, tmp_path, tmp_path / "none"), "model")
    other = _failed(
        _train(trainer, tmp_path, _model_file(tmp_path, "model.classes=3", "seed=1")), "model"
    )
    assert "expected" in other.detail
    bad = tmp_path / "nan"
    weights = create(_recipe().model).init(0)
    weights["bias"][0] = np.nan
    bad.write_bytes(encode_tensors(weights))
    assert "not finite" in _failed(_train(trainer, tmp_path, bad), "model").detail
    assert not (tmp_path / "update").exists()


def test_no_sample_no_update(tmp_path: Path) -> None:
    trainer, _ = _opened(stream="digits:start=0,rate=0.000001")
    _failed(_train(trainer, tmp_path, _model_file(tmp_path)), "no_data")


def test_iterations_that_take_in_no_sample_make_no_update(tmp_path: Path) -> None:
    trainer, _ = _opened("learner.name=strsaga")
    model = _model_file(tmp_path)
    assert "too few" in _failed(_train(trainer, tmp_path, model, iterations=1), "no_data").detail
    reply = _train(trainer, tmp_path, model, iterations=2)
    assert isinstance(reply, Trained), "what was not taken in waits"
    assert reply.stats.num_samples == 1


def test_an_update_that_the_edge_would_reject_is_not_sent(tmp_path: Path) -> None:
    model = _model_file(tmp_path)
    trainer, _ = _opened("limits.norm=0.0001")
    assert "limits.norm" in _failed(_train(trainer, tmp_path, model), "norm").detail
    trainer, _ = _opened("learner.rate=1000", "data.scale=1e30")
    _failed(_train(trainer, tmp_path, model, 50), "diverged")
    trainer, _ = _opened("limits.max_samples=7")
    reply = _train(trainer, tmp_path, model)
    assert isinstance(reply, Trained)
    assert reply.stats.num_samples == 7


def test_a_cancelled_training_leaves_nothing(tmp_path: Path) -> None:
    trainer, _ = _opened(stream="digits:rate=0.000001", cancelled=True)
    assert _failed(_train(trainer, tmp_path, _model_file(tmp_path)), "cancelled").offset == 50
    assert not (tmp_path / "update").exists()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    trainer, _ = _opened()
    model = _model_file(tmp_path)
    request = Train(job=1, model=str(model), out=str(model / "update"))
    assert "File exists" in _failed(trainer.answer(request), "disk").detail


def test_samples_that_do_not_fit_are_counted(tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    row = ",".join(["1"] * 64)
    csv.write_text("".join(f"{row},{label}\n" for label in (1, 11, 0.5, 2)))
    trainer, _ = _opened(stream=f"csv:{csv},dtype=uint8")
    reply = _train(trainer, tmp_path, _model_file(tmp_path))
    assert isinstance(reply, Trained)
    assert (reply.stats.arrivals, reply.stats.num_samples) == (4, 2)
    assert reply.counters == {"unfit": 2}
    trainer.close()


def test_a_stream_of_samples_that_do_not_fit_is_not_called_empty(tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text((",".join(["1"] * 64) + ",11\n") * 12 + "nonsense\n")
    trainer, _ = _opened(stream=f"csv:{csv},dtype=uint8")
    failed = _failed(_train(trainer, tmp_path, _model_file(tmp_path)), "no_data")
    assert failed.detail == "all samples were refused (bad_columns 1, unfit 12)"
    assert failed.counters == {"bad_columns": 1, "unfit": 12}
    trainer.close()


def test_a_file_that_was_read_before_is_not_called_empty(tmp_path: Path) -> None:
    csv = tmp_path / "a.csv"
    csv.write_text((",".join(["1"] * 64) + ",1\n") * 12)
    for offset, words in ((0, ""), (csv.stat().st_size, "replay:FILE")):
        trainer = Trainer(lambda _job, _wait: False)
        text = f"csv:{csv},dtype=uint8"
        task = task_bytes(_recipe())
        trainer.answer(Open(job=1, task=task, stream=text, seed=0, offset=offset))
        reply = _train(trainer, tmp_path, _model_file(tmp_path))
        assert isinstance(reply, Failed if words else Trained)
        assert words in getattr(reply, "detail", "")
        trainer.close()


def test_the_learner_none_takes_any_stream_and_needs_no_model(tmp_path: Path) -> None:
    sets = ("learner.name=none", "model.features=5")
    trainer, opened = _opened(*sets)
    assert isinstance(opened, Opened)
    replies = [_train(trainer, tmp_path, tmp_path / "none") for _ in range(2)]
    assert all(isinstance(reply, Trained) for reply in replies)
    assert len({reply.digest for reply in replies if isinstance(reply, Trained)}) == 2


@pytest.mark.parametrize(
    ("error", "lacks"),
    [
        (MemoryError(), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you"), True),
        (RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
    ],
)
def test_what_a_lack_of_memory_looks_like(error: Exception, lacks: bool) -> None:
    assert lacks_memory(error) == lacks


def test_a_full_disk_is_named_and_leaves_nothing_behind(tmp_path: Path) -> None:
    trainer, _ = _opened()
    model = _model_file(tmp_path)
    (tmp_path / f".update.{os.getpid()}").symlink_to("/dev/full")
    failed = _failed(_train(trainer, tmp_path, model), "disk")
    assert failed.detail == "No space left on device"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
