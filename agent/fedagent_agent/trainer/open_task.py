"""A task on its stream: the model, the learner, and the samples on their way to it."""

import logging
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedagent_agent.learners import Tensors, instead_of
from fedagent_agent.learners import create as create_learner
from fedagent_agent.learners.base import FailedTrainingError
from fedagent_agent.streams import parse_stream
from fedagent_agent.streams.base import Samples, Stream, StreamSchema
from fedagent_agent.streams.spec import StreamError
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import decode_tensors
from fedagent_task.errors import TaskFormatError
from fedagent_task.models import create as create_model
from fedagent_task.models.base import Csr
from fedagent_task.models.features import fitting, names_of, offset_key, scaled, scaling_of
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.spec import ModelSpec, TaskSpec
from fedagent_task.recipe.text import parse_task
from fedagent_task.scoring.graph import scored
from fedagent_task.travelling import CONTROL, travelling

from .device_state import DeviceState
from .frames import Open
from .samples import ENOUGH, HeldOutSamples, Part, Place, Proportions, ValidationStream
from .scoring import Scorer

NOTHING_NEW = (
    "no new samples have arrived on the stream, and samples read in an earlier start or run are "
    "not used again; --stream replay:FILE repeats a file"
)

_OUT = (
    "models train well on features of about 1: scale each feature in data.features of the recipe, "
    "or set data.standardize = true"
)
_UNFIT = "count the classes from 0, or name them in data.labels of the recipe and in the samples"
MANY, FEW = 0.1, 0.005
"""Shares of refused samples, and of refused labels, from which the run's operator is told."""
_SPARSE_KINDS = ("linear", "logistic", "softmax", "svm")

_log = logging.getLogger(__name__)


class OpenTask:
    """One task, its streams and learner; raises `TaskFormatError` or `StreamError`."""

    def __init__(self, request: Open) -> None:
        task = self.task = parse_task(request.task)
        self.request = request
        model = self.model = create_model(task.model)
        graph = model if isinstance(model, Graph) else None
        rules = graph.rules() if graph is not None else {}
        trained = [name for name, role in rules.items() if role == "train"]
        self.manifest = travelling(model.manifest(), task.aggregation, trained)
        """The tensors of a model's file, and of an update."""
        counters = {name for name, role in rules.items() if role == "latest"}
        riding = {one.name for one in self.manifest.specs if one.name.startswith(CONTROL)}
        self.uncounted: frozenset[str] = frozenset(counters | riding)
        """What the limit of an update's norm is not about."""
        spec = parse_stream(request.stream)
        self.stream = spec.create(
            seed=request.seed, offset=request.offset, mark=request.mark, data=task.data
        )
        seeds = np.random.SeedSequence(request.seed, spawn_key=(1, request.offset))
        rng = np.random.default_rng(seeds)
        once = _read_once(request.once, graph)
        self.learner = create_learner(
            self.model,
            task.learner,
            rng,
            compile_loops=None,
            aggregation=task.aggregation,
            threads=request.threads,
            once=once,
        )
        stays = graph.program.of_roles("local") if graph is not None else ()
        shapes = {one.name: one.shape for one in stays}
        shapes |= {one.name: one.shape for one in self.manifest.specs if one.name in riding}
        self.state = DeviceState(shapes)
        self.scorer = Scorer(task, model if graph is None else scored(graph, once) or graph)
        self.held = HeldOutSamples()
        # Users and items are numbers, not sizes; raw samples are not what is learnt from, and
        # a graph may scale them itself, or take numbers of words.
        unsized = task.data.standardize or task.model.kind in ("mf", "graph")
        self.proportions = Proportions(over=unsized)
        self.validation: ValidationStream | None = None
        if request.held_out:
            apart = parse_stream(request.held_out)
            stream = apart.create(seed=request.seed + 1, data=task.data)
            self.validation = ValidationStream(stream, task.opinions.window)
        self.names: tuple[str, ...] = ()
        """What the stream calls the features."""
        self.arrived = 0
        self._seen = self._unfit = self._unfit_labels = 0
        self._told = False

    @property
    def streams(self) -> tuple[Stream, ...]:
        """The stream to learn from, and the one for evaluations only."""
        return (self.stream,) if self.validation is None else (self.stream, self.validation.stream)

    @property
    def place(self) -> Place:
        """Where to go on in the stream so that no sample is lost with this process."""
        return self.held.place(_place_of(self.stream))

    def open(self, now: float) -> None:
        """Open the streams; raise `TaskFormatError` for what does not fit, else `StreamError`."""
        schemas = [stream.open(now) for stream in self.streams]
        for schema in schemas:
            if (misfit := misfit_of(schema, self.task)) is not None:
                raise TaskFormatError(*misfit)
        schema = schemas[0]
        self.names = schema.names
        self.proportions.names = schema.names or names_of(self.task.data, schema.features)

    def close(self) -> None:
        """Close the streams."""
        for stream in self.streams:
            stream.close()

    def carry_over(self, former: "OpenTask") -> None:
        """Take samples from a stream that has no past: it will not give them again."""
        same = former.task.data.standardize and former.request.stream == self.request.stream
        if same and former.stream.offset == 0:
            for x, y in former.held.give(len(former.held)):
                self.held.put(scaled(x, self.task.data), y, start=Place())

    # ---------------------------------------------------------------- samples

    def gather(self, now: float) -> None:
        """Take what arrived since the last look, and hold those samples that fit."""
        start = _place_of(self.stream)
        samples = _take(self.stream, now)
        self.arrived += len(samples)
        if len(samples):
            x, y = self._fitting(samples)
            self.held.put(x, y, start=start)
            if self.proportions.look(x):
                _log.warning("features %s; %s", self.proportions.note, _OUT)
        if self._misfit and not self._told:
            self._told = True
            _log.warning("%s; %s", self._misfit, _UNFIT)

    def newest(self, now: float) -> Iterator[Part]:
        """Yield the newest samples that nobody has learnt from; afterwards that is allowed."""
        window = self.task.opinions.window
        if self.validation is not None:
            self.validation.put(*self._fitting(_take(self.validation.stream, now)))
            yield from self.validation.newest()
            return
        self.gather(now)
        yield from self.held.newest(window)
        self.held.scored()
        # What is beyond the window is not scored again: the learner bounds what it keeps.
        for x, y in self.held.give(len(self.held) - window):
            self.learner.absorb(x, y)

    def _fitting(self, samples: Samples) -> Part:
        x = scaled(samples.x, self.task.data)
        good = fitting(x, samples.y, self.task.model)
        finite = x.finite() if isinstance(x, Csr) else np.isfinite(x).all(axis=1)
        self._seen += len(samples)
        self._unfit += len(samples) - int(good.sum())
        self._unfit_labels += int((finite & ~good).sum())
        rows = np.flatnonzero(good)
        return x[rows], samples.y[rows]

    @property
    def counters(self) -> dict[str, int]:
        """Samples that were not learnt from, by reason."""
        own = {"unfit": self._unfit, "not_learnt": self.learner.dropped}
        own["state_lost"] = self.state.lost
        own["strsaga_replaced"] = int(instead_of(self.task.model, self.task.learner) is not None)
        return {name: n for name, n in {**self.stream.counters, **own}.items() if n}

    @property
    def _refused(self) -> dict[str, int]:
        return {
            name: n for name, n in self.counters.items() if name == "unfit" or name[:4] == "bad_"
        }

    @property
    def _misfit(self) -> str:
        """How large a part of the samples is refused, and what for most; empty for a few."""
        refused = Counter(self._refused)
        count = refused.total()
        total = self._seen + count - self._unfit
        refused["unfit label"] = self._unfit_labels
        refused["unfit"] -= self._unfit_labels
        labels = refused["unfit label"] + refused["bad_label"]
        # A sensor has gaps; a label that the task has not is one of another code.
        if total < ENOUGH or not (count >= MANY * total or labels >= FEW * total):
            return ""
        why = ", ".join(name for name, n in refused.most_common() if n >= FEW * total)
        share = 100 * count / total
        return (
            f"{max(1, round(share, -1 if share > 10 else 0)):g} % of its samples do not fit: {why}"
        )

    @property
    def note(self) -> str:
        """What the run's operator should know of the samples; nothing where they are private."""
        if self.task.privacy.wanted:
            return ""
        return "; ".join(filter(None, (self.proportions.note, self._misfit)))

    @property
    def no_data_reason(self) -> str:
        """Why there is nothing to learn from; with privacy it counts nothing, as it is sent."""
        refused = ", ".join(f"{name} {n}" for name, n in self._refused.items())
        if refused and self.task.privacy.wanted:
            return "all samples were refused"
        if refused:
            return f"all samples were refused ({refused})"
        return NOTHING_NEW if self.stream.offset else "no samples have arrived on the stream yet"


def _read_once(path: str, graph: Graph | None) -> Tensors:
    """Return the tensors that a device gets once; `TaskFormatError`: the file is not theirs."""
    if not path or graph is None:
        return {}
    try:
        tensors = decode_tensors(Path(path).read_bytes(), graph.once_manifest())
    except (OSError, ProtocolError) as error:
        raise TaskFormatError("model.once", str(error)[:500]) from error
    return {name: tensor.astype(np.float32, copy=False) for name, tensor in tensors.items()}


def _place_of(stream: Stream) -> Place:
    return Place(stream.offset, stream.mark)


def _take(stream: Stream, now: float) -> Samples:
    try:
        return stream.take(now)
    except StreamError as error:
        raise FailedTrainingError("stream", str(error)[:1000]) from error


def misfit_of(schema: StreamSchema, task: TaskSpec) -> tuple[str, str] | None:
    """Return the recipe's key and why the stream does not fit it, or None."""
    model = task.model
    if schema.features != model.features:
        return "model.features", f"task wants {model.features}, the stream has {schema.features}"
    named = tuple(one.name for one in task.data.features)
    if named != schema.names and sorted(named) == sorted(schema.names):
        shown = ", ".join(named)
        return "data.features", f"the stream has them in another order than the task: {shown}"
    linear = scaling_of(task.data).linear and not task.data.standardize
    if schema.sparse and not (linear and model.kind in _SPARSE_KINDS):
        key = "model.kind" if linear else offset_key(task.data)
        return key, f"the stream is sparse: take offset 0 and one of {', '.join(_SPARSE_KINDS)}"
    return _labels_misfit(schema.labels, model)


def _labels_misfit(labels: tuple[int, ...] | None, model: ModelSpec) -> tuple[str, str] | None:
    classes = model.num_classes
    if not labels or model.regression or (labels[0] >= 0 and labels[-1] < classes):
        return None
    wrong = labels[0] if labels[0] < 0 else labels[-1]
    key = "model.kind" if model.kind == "logistic" else "model.classes"
    return key, f"task has the classes 0 to {classes - 1}, the stream has {wrong}"
