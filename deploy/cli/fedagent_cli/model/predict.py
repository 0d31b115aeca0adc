"""`fedagent predict`: what an exported model says of a stream's samples."""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from fedagent_agent.streams import parse_stream
from fedagent_agent.streams.base import Samples, Stream, StreamError
from fedagent_agent.trainer.open_task import misfit_of
from fedagent_cli import options
from fedagent_cli.command_line import Number
from fedagent_cli.errors import InterruptedEnd, MissingError, UsageError
from fedagent_cli.output import echo, emit
from fedagent_protocol.errors import ProtocolError, hide_password
from fedagent_protocol.extras import how_to_add
from fedagent_task.errors import TaskFormatError, TorchNeededError
from fedagent_task.models import Doubles
from fedagent_task.models.features import names_of
from fedagent_task.recipe.spec import DataSpec, TaskSpec
from fedagent_task.scoring.exported import Predictor, open_model

MAX_NAMES = 12
LOOK_S = 0.1
"""How often a stream is looked at while nothing comes."""
SILENT_S = 3.0
"""After how long it is said that nothing came yet."""
STILL_SILENT_S = 30.0
"""How often it is said again."""


@click.command(
    epilog=options.examples(
        "fedagent predict model.safetensors --stream csv:meter.csv",
        "fedagent predict model.onnx --stream csv:new.csv,label=none --json",
        "fedagent predict model.onnx --stream 'mqtt://pi/home?features=a,b&label=y' --count 10",
    )
)
@click.argument("model", type=options.PATH)
@click.option("--stream", help="Stream of samples, as for `fedagent start`.")
@click.option(
    "--count",
    type=Number(int, min=0),
    default=0,
    help="Number of samples to wait for; 0 takes those that are there, or else those that "
    "arrive until Ctrl-C.",
)
@options.as_json
def predict(model: Path, *, stream: str | None, count: int, as_json: bool) -> None:
    """Predict a stream's samples with a model; the samples are as the sensors report them.

    MODEL is a file that `fedagent export --model` wrote. It carries how features are scaled and
    what classes are called. With labels in the stream the last line says how good the model is.
    """
    if stream is None:
        raise UsageError("no stream", "add --stream, e.g. --stream csv:meter.csv")
    try:
        data = model.read_bytes()
    except OSError as error:
        raise MissingError(f"cannot read {model}: {error.strerror}", "name a model file") from error
    predictor = _opened(model, data)
    source = _stream(predictor, stream)
    tally = _Tally(predictor)
    try:
        for samples in _arrivals(source, count, _Silence(stream)):
            for line in tally.take(samples):
                emit(line) if as_json else echo(_in_words(line))
    except InterruptedEnd:
        if count:
            raise  # else it is how what comes by and by is ended
    finally:
        source.close()
    record = tally.summary(str(model), source)
    emit(record) if as_json else echo(_summed_up(record))


def _opened(path: Path, data: bytes) -> Predictor:
    try:
        return open_model(data)
    except ModuleNotFoundError as error:
        raise MissingError(
            "the onnxruntime package is not installed", how_to_add("onnxruntime")
        ) from error
    except TorchNeededError as error:
        hint = f"{error.hint}; or use a model that was exported with --onnx"
        raise MissingError("the torch package is not installed", hint) from error
    except (TaskFormatError, ProtocolError) as error:
        hint = "use a file that `fedagent export --model` wrote as safetensors or ONNX"
        raise UsageError(f"{path}: {error}", hint) from error


def _stream(predictor: Predictor, text: str) -> Stream:
    """Open the stream, if the model can take what it gives."""
    model = predictor.described
    try:
        source = parse_stream(text).create(seed=0, labels=model.data.labels)
        schema = source.open(time.monotonic())
    except StreamError as error:
        raise UsageError(f"{error.key}: {error.reason_here}", error.hint) from error
    misfit = misfit_of(schema, TaskSpec(model=model.model, data=model.data))
    if misfit is not None:
        source.close()
        detail = misfit[1].replace("task wants", "it takes")
        raise UsageError(f"the stream does not fit the model: {detail}", _hint(model.data, text))
    return source


def _hint(data: DataSpec, text: str) -> str:
    between = "," if text.startswith("mqtt") else "+"
    names = [one.name for one in data.features]
    if tuple(names) == names_of(DataSpec(), len(names)):
        names = []  # nobody has named them
    shown = between.join(names[:MAX_NAMES]) if names else f"NAME{between}NAME"
    more = f"{between}..." if len(names) > MAX_NAMES or not names else ""
    return f"say features={shown}{more} in the stream's options, and label=none where it has none"


class _Silence:
    """Says on standard error that no sample has come: a wrong topic looks like a quiet one."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._due = time.monotonic() + SILENT_S

    def look(self, source: Stream) -> None:
        """Say it if it is time to."""
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + STILL_SILENT_S
        refused = [f"{name} {n}" for name, n in source.counters.items() if n]
        counted = f" ({', '.join(refused)})" if refused else ""
        said = f"no sample yet from {self._stream}{counted}; {self._advice}; Ctrl-C ends"
        sys.stderr.write(f"fedagent: {hide_password(said)}\n")
        sys.stderr.flush()

    @property
    def _advice(self) -> str:
        if self._stream.startswith("mqtt"):
            return "check broker and topic with mosquitto_sub, and the names of the fields"
        if self._stream.startswith("csv:"):
            return "check that whole lines are appended to the file"
        return "check that it gives samples"


def _arrivals(source: Stream, count: int, silence: _Silence) -> Iterator[Samples]:
    seen, live = 0, False
    while True:
        try:
            samples = source.take(time.monotonic())
        except StreamError as error:
            raise UsageError(f"{error.key}: {error.reason_here}", error.hint) from error
        if count:
            samples = samples.rows(slice(0, count - seen))
        seen += len(samples)
        live = live or not seen
        if len(samples):
            yield samples
        if seen >= count and not (live and not count):
            return
        if not seen:
            silence.look(source)
        time.sleep(LOOK_S)


@dataclass(slots=True)
class _Tally:
    """Predictions so far, and how many of those with a label were right."""

    predictor: Predictor
    count: int = 0
    labelled: int = 0
    right: int = 0
    wrong: float = 0.0
    squared: float = 0.0

    def take(self, samples: Samples) -> Iterator[dict[str, object]]:
        """Yield what the model says of each sample."""
        output = self.predictor.forward(samples.x)
        for row, label in zip(output, samples.y.tolist(), strict=True):
            if not math.isfinite(row.sum()):
                continue  # a sample with a gap in it
            self.count += 1
            yield self._regressed(row, label) if self._regression else self._classed(row, label)

    @property
    def _regression(self) -> bool:
        return self.predictor.described.model.regression

    def _regressed(self, row: Doubles, label: float) -> dict[str, object]:
        value = float(row[0])
        line: dict[str, object] = {"prediction": value}
        if math.isfinite(label):
            self.labelled += 1
            self.wrong += abs(value - label)
            self.squared += (value - label) ** 2
            line["label"] = label
        return line

    def _classed(self, row: Doubles, label: float) -> dict[str, object]:
        found = int(row.argmax())
        what = "scores" if self.predictor.described.model.kind == "svm" else "probabilities"
        line: dict[str, object] = {"prediction": self._name(found), what: row.tolist()}
        if math.isfinite(label):
            self.labelled += 1
            self.right += found == label
            line["label"] = self._name(int(label))
        return line

    def _name(self, index: int) -> str | int:
        names = self.predictor.described.data.labels
        return names[index] if 0 <= index < len(names) else index

    def summary(self, model: str, source: Stream) -> dict[str, object]:
        """Return how good the predictions were, as far as there were labels."""
        n = self.labelled
        record: dict[str, object] = {"model": model, "count": self.count, "labelled": n}
        if self._regression:
            record["rmse"] = math.sqrt(self.squared / n) if n else None
            record["mae"] = self.wrong / n if n else None
        else:
            record["accuracy"] = self.right / n if n else None
        return {**record, "counters": {k: v for k, v in source.counters.items() if v}}


def _in_words(line: dict[str, object]) -> str:
    found, sure = line["prediction"], line.get("probabilities", line.get("scores"))
    text = f"{found:<16} {max(sure):7.3f}" if isinstance(sure, list) else f"{found:.6g}"
    return f"{text}   label {line['label']}" if "label" in line else text


def _summed_up(record: dict[str, object]) -> str:
    keys = ("accuracy", "rmse", "mae")
    good = ", ".join(f"{key} {record[key]:.4g}" for key in keys if record.get(key) is not None)
    counters = record["counters"]
    assert isinstance(counters, dict)
    refused = "".join(f"; {name} {n}" for name, n in counters.items())
    if not good:
        return f"{record['count']} samples without labels{refused}"
    return f"{good} on {record['labelled']} samples{refused}"
