"""`fedagent predict`: exported models on streams, in words and as JSON."""

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.numpy

from fedagent_cli.errors import CliError, InterruptedEnd
from fedagent_task.recipe.spec import DataSpec, FeatureSpec, ModelSpec
from fedagent_task.recipe.text import described
from tests.typed import here

FEATURES = (
    FeatureSpec(name="pa", mean=101_325.0, deviation=500.0),
    FeatureSpec(name="lux", scale=1e-5),
)
YES_NO = DataSpec(labels=("calm", "storm"), features=FEATURES)
LOGISTIC, LINEAR = (ModelSpec(kind="logistic", features=2), ModelSpec(kind="linear", features=2))
CSV = "pa,lux,state\n100000,1,storm\n102000,2,calm\n102000,3,storm\n"


def model_file(
    folder: Path,
    spec: ModelSpec = LOGISTIC,
    data: DataSpec = YES_NO,
    metadata: dict[str, str] | None = None,
) -> Path:
    weights = {"weight": np.array([[-2.0, 0.0]], np.float32), "bias": np.zeros(1, np.float32)}
    path = folder / "m.safetensors"
    path.write_bytes(safetensors.numpy.save(weights, {**described(spec, data), **(metadata or {})}))
    return path


def csv(folder: Path, text: str = CSV, *more: str) -> str:
    (folder / "a.csv").write_text(text)
    return ",".join([f"csv:{folder}/a.csv", *more])


def test_classes_have_their_names_and_the_last_line_says_how_good(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    here("predict", model_file(tmp_path), stream=csv(tmp_path))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines[:2]] == [
        ["storm", "0.995", "label", "storm"],
        ["calm", "0.937", "label", "calm"],
    ]
    assert lines[-1] == "accuracy 0.6667 on 3 samples"

    here("predict", model_file(tmp_path), stream=csv(tmp_path), count=2, json=True)
    first, _, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["prediction"], first["label"]) == ("storm", "storm")
    assert first["probabilities"] == pytest.approx([0.005, 0.995], abs=1e-3)
    assert (last["count"], last["labelled"], last["accuracy"]) == (2, 2, 1.0)


def test_a_number_is_told_with_its_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = DataSpec(scale=0.5)
    here("predict", model_file(tmp_path, LINEAR, data), stream=csv(tmp_path, "1,0,-2\n3,0,-3\n"))
    assert capsys.readouterr().out == (
        "-1   label -2.0\n-3   label -3.0\nrmse 0.7071, mae 0.5 on 2 samples\n"
    )


@pytest.mark.parametrize(
    ("text", "more", "says"),
    [
        ("1,2\n", (), r"it takes 2, the stream has 1; say features=pa\+lux in .* label=none"),
        ("lux,pa,y\n1,2,0\n", ("features=lux+pa",), r"in another order than the task: pa, lux"),
        ("pa,lux,y\n1,2,0\n", ("label=z",), r"label: no column 'z'"),
        (
            "pa,lux,y\n1,2,0\n",
            ("lable=y",),
            r"lable: is not an option of this stream; did you mean label",
        ),
    ],
)
def test_a_stream_that_does_not_fit_is_one_line(
    tmp_path: Path, text: str, more: tuple[str, ...], says: str
) -> None:
    with pytest.raises(CliError, match=says):
        here("predict", model_file(tmp_path), stream=csv(tmp_path, text, *more))


@pytest.mark.parametrize("count", [0, 5])
def test_ctrl_c_is_how_what_comes_by_and_by_is_ended(
    tmp_path: Path, count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = csv(tmp_path, "pa,lux,state\n")
    rows = iter(["100000,1,storm\n"])

    def nap(_seconds: float) -> None:
        for row in rows:
            with (tmp_path / "a.csv").open("a") as file:
                file.write(row)
            return
        raise InterruptedEnd

    monkeypatch.setattr("fedagent_cli.model.predict.time.sleep", nap)
    with pytest.raises(InterruptedEnd) if count else nullcontext():
        here("predict", model_file(tmp_path), stream=stream, count=count, json=True)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["prediction"] == "storm"
    assert [line["count"] for line in lines[1:]] == ([] if count else [1])


def test_silence_is_said_with_what_was_refused_and_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = csv(tmp_path, "pa,lux,state\nnan,1,storm\n")
    now = [0.0]

    def nap(seconds: float) -> None:
        now[0] += seconds
        if now[0] > 40.0:
            raise InterruptedEnd

    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=nap)
    monkeypatch.setattr("fedagent_cli.model.predict.time", clock)
    topic = "mqtt://me:secret@127.0.0.1:1/home/boilerX?features=pa,lux&label=state"
    for source, said in (
        (stream, f"no sample yet from {stream} (bad_not_finite 1)"),
        (topic, "boilerX"),
    ):
        now[0] = 0.0
        here("predict", model_file(tmp_path), stream=source)
        lines = [one for one in capsys.readouterr().err.splitlines() if "no sample" in one]
        assert len(lines) == 2
        assert said in lines[0]
        assert "secret" not in lines[0]


def test_files_that_are_no_models_are_one_line(tmp_path: Path) -> None:
    plain = tmp_path / "plain.safetensors"
    plain.write_bytes(safetensors.numpy.save({"weight": np.zeros((1, 2), np.float32)}))
    with pytest.raises(CliError, match=r"says not what it takes: export it again"):
        here("predict", plain, stream=csv(tmp_path))
    with pytest.raises(CliError, match=r"csv: .*/none.csv: there is no such file; check"):
        here("predict", model_file(tmp_path), stream=f"csv:{tmp_path}/none.csv")
    with pytest.raises(CliError, match=r"cannot read .*none"):
        here("predict", tmp_path / "none", stream=csv(tmp_path))
    deep = b'{"x":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    plain.write_bytes(len(deep).to_bytes(8, "little") + deep)
    with pytest.raises(CliError, match=r"the bytes are no model"):
        here("predict", plain, stream=csv(tmp_path))
    wide = ModelSpec(kind="logistic", features=3)
    with pytest.raises(CliError, match=r"tensor 'weight'"):
        here("predict", model_file(tmp_path, wide, DataSpec()), stream=csv(tmp_path))
