"""`fedagent predict`: what an exported model says of a stream's samples."""

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from fedagent_agent.streams import parse_stream
from fedagent_agent.streams.base import Samples, Stream
from fedagent_agent.streams.spec import StreamError
from fedagent_agent.trainer.open_task import misfit_of
from fedagent_cli import options
from fedagent_cli.command_line import Number
from fedagent_cli.errors import InterruptedEnd, MissingError, UsageError
from fedagent_cli.output import echo, emit
from fedagent_protocol.errors import ProtocolError, hide_password
from fedagent_protocol.extras import how_to_add
from fedagent_task.errors import NotInstalledError, TaskFormatError
from fedagent_task.models.features import names_of
from fedagent_task.recipe.spec import DataSpec, TaskSpec
from fedagent_task.scoring.exported import Predictor, open_model

MAX_NAMES = 12
LOOK_S = 0.1
"""How often a stream is looked at while nothing comes."""
SILENT_S = 30.0
"""How often it is said that nothing came yet, first after a tenth of it."""
Line = dict[str, object]


@click.command(
    epilog=options.examples(
        "fedagent predict model.safetensors --stream csv:meter.csv",
        "fedagent predict model.onnx --stream csv:new.csv,label=none --json",
        "fedagent predict model.onnx --stream 'mqtt://pi/home?features=a,b&label=y' --count 10",
    )
)
@click.argument("model", type=options.PATH)
@click.option("--stream", required=True, help="Stream of samples, as for `fedagent start`.")
@click.option(
    "--count",
    type=Number(int, min=0),
    default=0,
    help="Number of samples to wait for; 0 takes those that are there, or else those that "
    "arrive until Ctrl-C.",
)
@options.as_json
def predict(model: Path, *, stream: str, count: int, as_json: bool) -> None:
    """Predict a stream's samples with a model; the samples are as the sensors report them.

    MODEL is a file that `fedagent export --model` wrote. It carries how features are scaled and
    what classes are called. With labels in the stream the last line says how good the model is.
    """
    predictor = _opened(model)
    source = _stream(predictor, stream)
    tally = _Tally(predictor)
    try:
        for samples in _arrivals(source, stream, count):
            for line in tally.take(samples):
                emit(line) if as_json else echo(_in_words(line))
    except InterruptedEnd:
        if count:
            raise  # else it is how what comes by and by is ended
    finally:
        source.close()
    counters = {name: count for name, count in source.counters.items() if count}
    if as_json:
        emit({"model": str(model), **tally.figures(), "counters": counters})
        return
    known = [f"{key} {value:.4g}" for key, value in tally.rated().items() if value is not None]
    good = f"{', '.join(known)} on {tally.figures()['labelled']} samples" if known else ""
    refused = "".join(f"; {name} {count}" for name, count in counters.items())
    echo(f"{good or f'{tally.count} samples without labels'}{refused}")


def _opened(path: Path) -> Predictor:
    try:
        return open_model(path.read_bytes())
    except OSError as error:
        raise MissingError(f"cannot read {path}: {error.strerror}", "name a model file") from error
    except ModuleNotFoundError as error:
        reason = "the onnxruntime package is not installed"
        raise MissingError(reason, how_to_add("onnxruntime")) from error
    except NotInstalledError as error:
        hint = f"{error.hint}; or use a model that was exported as .onnx"
        raise MissingError("the torch package is not installed", hint) from error
    except (TaskFormatError, ProtocolError) as error:
        hint = "use a file that `fedagent export --model` wrote as safetensors or ONNX"
        raise UsageError(f"{path}: {error}", hint) from error


def _stream(predictor: Predictor, text: str) -> Stream:
    model = predictor.described
    try:
        source = parse_stream(text).create(seed=0, data=model.data)
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
        names = ["NAME", "NAME", "..."]  # the recipe does not name them
    elif len(names) > MAX_NAMES:
        names = [*names[:MAX_NAMES], "..."]
    said = between.join(names)
    return f"say features={said} in the stream's options, and label=none where it has none"


def _arrivals(source: Stream, name: str, count: int) -> Iterator[Samples]:
    """Yield what comes, until there are `count`; 0: what is there, else until Ctrl-C.

    Silence is said on standard error: a wrong topic looks like a quiet one.
    """
    seen, live, due = 0, False, time.monotonic() + SILENT_S / 10
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
        if not seen and (now := time.monotonic()) >= due:
            due = now + SILENT_S
            refused = ", ".join(f"{key} {n}" for key, n in source.counters.items() if n)
            said = f"no sample yet from {name}{refused and f' ({refused})'}"
            hint = "check that samples arrive there, and the names of the fields; Ctrl-C ends"
            sys.stderr.write(f"fedagent: {hide_password(said)}; {hint}\n")
            sys.stderr.flush()
        time.sleep(LOOK_S)


class _Tally:
    """Predictions so far, and how good those were that have a label."""

    def __init__(self, predictor: Predictor) -> None:
        self._predictor, model = predictor, predictor.described.model
        self._names = dict(enumerate(predictor.described.data.labels))
        self._regression = model.regression
        self._what = "scores" if model.kind == "svm" else "probabilities"
        self.count = 0
        self._sums = np.zeros(4)  # of those with a label: one, right, error, squared error

    def take(self, samples: Samples) -> Iterator[Line]:
        """Yield what the model says of each sample."""
        output = self._predictor.forward(samples.x)
        for row, label in zip(output, samples.y.tolist(), strict=True):
            if not math.isfinite(row.sum()):
                continue  # a sample with a gap in it
            self.count += 1
            found = float(row[0]) if self._regression else int(row.argmax())
            line: Line = {"prediction": self._named(found)}
            if not self._regression:
                line[self._what] = row.tolist()
            if math.isfinite(label):
                off = abs(found - label)
                self._sums += (1, off == 0, off, off**2)
                line["label"] = self._named(label)
            yield line

    def _named(self, value: float) -> object:
        return value if self._regression else self._names.get(int(value), int(value))

    def rated(self) -> dict[str, float | None]:
        """Return how good the predictions were; None where there were no labels."""
        n = self._sums[0]
        _, right, off, squared = [float(one) / n if n else None for one in self._sums]
        if not self._regression:
            return {"accuracy": right}
        return {"rmse": None if squared is None else math.sqrt(squared), "mae": off}

    def figures(self) -> dict[str, object]:
        """Return counts, and how good the predictions were."""
        return {"count": self.count, "labelled": int(self._sums[0]), **self.rated()}


def _in_words(line: Line) -> str:
    found, sure = line["prediction"], line.get("probabilities", line.get("scores"))
    text = f"{found:<16} {max(sure):7.3f}" if isinstance(sure, list) else f"{found:.6g}"
    return f"{text}   label {line['label']}" if "label" in line else text
