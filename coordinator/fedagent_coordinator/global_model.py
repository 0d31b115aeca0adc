"""Global models: the weighted mean of edge models, and how good it is on held-out samples.

The mean is that of ALGORITHMS section 1; the samples are data that the coordinator has itself.
"""

import mmap
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedagent_node.blobs import BlobStore
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import (
    Buffer,
    Manifest,
    decode_tensors,
    digest_of,
    encode_tensors,
    locate,
    tensor_at,
)
from fedagent_task import models
from fedagent_task.aggregation import ALL_TRAIN, Rules, RunningMean, Strategy
from fedagent_task.features import expect_fit, expect_width, scaled
from fedagent_task.graph_scoring import ScoredGraph, scored
from fedagent_task.measures import NO_DATASET
from fedagent_task.metrics import Evaluation, evaluate
from fedagent_task.models.base import densed
from fedagent_task.models.graph import Graph
from fedagent_task.readers import Dataset, load
from fedagent_task.spec import Recipe
from fedagent_task.task_file import TaskFile

from .core.effects import Merge, Merged

if TYPE_CHECKING:
    from fedagent_task.onnx_session import OnnxSession

Tensors = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """One edge model: its safetensors bytes and how much it counts.

    `buffer_weight` is that of its buffers, if it is another one.
    """

    digest: str
    data: Buffer
    weight: float
    buffer_weight: float | None = None


@dataclass(frozen=True, slots=True)
class MeanModel:
    """What a merge made: no digest when no model was usable, no data when it is one of them."""

    digest: str
    data: bytes
    refused: dict[str, str]


def merge_models(
    models: Sequence[EdgeModel], manifest: Manifest, rules: Rules = ALL_TRAIN
) -> MeanModel:
    """Return the mean of the models, summed in float64 one tensor at a time.

    A model that does not fit the manifest, or is not finite, is left out with a
    reason, so that one edge cannot spoil the global model. The mean of one model
    is that model.
    """
    usable, refused = _usable(models, manifest)
    if len(usable) <= 1:
        return MeanModel(usable[0][0].digest if usable else "", b"", refused)
    data = encode_tensors(_means(usable, manifest, rules))
    return MeanModel(digest_of(data), data, refused)


def _usable(
    models: Sequence[EdgeModel], manifest: Manifest
) -> tuple[list[tuple[EdgeModel, Tensors]], dict[str, str]]:
    """Return models with their tensors, and why the others are none."""
    refused: dict[str, str] = {}
    usable: list[tuple[EdgeModel, Tensors]] = []
    for model in models:
        try:
            tensors = decode_tensors(model.data, manifest)
        except ProtocolError as error:
            refused[model.digest] = f"{error.reason}: {error}"
            continue
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            refused[model.digest] = "non_finite"
        else:
            usable.append((model, tensors))
    return usable, refused


@dataclass(frozen=True, slots=True)
class Stepped:
    """What a strategy made of a mean: no data when no model was usable, or the step was not."""

    data: bytes
    state: bytes
    refused: dict[str, str]


def step_models(
    models: Sequence[EdgeModel], manifest: Manifest, merge: Merge, strategy: Strategy, kept: Kept
) -> Stepped:
    """Return the global model that a strategy makes of the mean, and what it knows after it."""
    usable, refused = _usable(models, manifest)
    if not usable:
        return Stepped(b"", b"", refused)
    mean = _means(usable, manifest, merge.facts.rules)
    base = decode_tensors(kept.base, manifest)
    model, state = strategy.server(base, mean, kept.state, merge.facts)
    wrong = _misshaped(model, manifest)
    if wrong:
        return Stepped(b"", b"", {**refused, merge.base: f"the server step {wrong}"})
    return Stepped(encode_tensors(model), encode_tensors(state) if state else b"", refused)


@dataclass(frozen=True, slots=True)
class Kept:
    """The last global model, and what the server optimiser knew after it."""

    base: Buffer
    state: Mapping[str, npt.NDArray[np.generic]]


def _misshaped(model: Mapping[str, npt.NDArray[np.generic]], manifest: Manifest) -> str:
    """Return what is wrong with what a strategy made, or an empty string."""
    if Manifest.of(model) != manifest:
        return "has other tensors than the model"
    finite = all(np.isfinite(tensor).all() for tensor in model.values())
    return "" if finite else "is not finite"


def merge_files(
    blobs: BlobStore, manifest: Manifest, merge: Merge, strategy: Strategy | None = None
) -> Merged:
    """Average edge models by digest and weight into a durable global one.

    The models are mapped, not read, so that memory stays at one tensor. A strategy that acts on
    the mean has the last model and what it kept in memory too; both files are durable before
    anything of them is told.
    """
    buffers = merge.buffers or tuple(weight for _, weight in merge.models)
    with ExitStack() as stack:
        models: list[EdgeModel] = []
        missing: dict[str, str] = {}
        for (digest, weight), buffer in zip(merge.models, buffers, strict=True):
            try:
                file = stack.enter_context(blobs.path(digest).open("rb"))
            except FileNotFoundError:
                missing[digest] = "missing"
                continue
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            models.append(EdgeModel(digest, data, weight, buffer))
        if strategy is not None and merge.base:
            former = blobs.get(merge.state) if merge.state else b""
            kept = Kept(blobs.get(merge.base), _arrays(former))
            step = step_models(models, manifest, merge, strategy, kept)
            digest = blobs.put(step.data) if step.data else ""
            state = blobs.put(step.state) if step.state else ""
            return Merged(merge.round, digest, {**missing, **step.refused}, state)
        mean = merge_models(models, manifest, merge.facts.rules)
        if mean.data:
            blobs.put(mean.data)
        return Merged(merge.round, mean.digest, {**missing, **mean.refused})


def _arrays(data: Buffer) -> Tensors:
    return {item.spec.name: tensor_at(data, item) for item in locate(data)} if len(data) else {}


def _means(
    models: Sequence[tuple[EdgeModel, Tensors]], manifest: Manifest, rules: Rules
) -> Tensors:
    # What is newest nobody knows of edges: that of the one which learnt most.
    newest = max(models, key=lambda one: (_buffer_weight(one[0]), one[0].digest))[1]
    return {
        name: newest[name] if name in rules.latest else _mean(name, models, rules)
        for name in (spec.name for spec in manifest.specs)
    }


def _mean(
    name: str, models: Sequence[tuple[EdgeModel, Tensors]], rules: Rules
) -> npt.NDArray[np.generic]:
    mean = RunningMean()
    for model, tensors in models:
        weight = _buffer_weight(model) if name in rules.mean else model.weight
        mean.add({name: tensors[name]}, weight)
    return mean.apply({name: np.zeros_like(models[0][1][name])})[name]


def _buffer_weight(model: EdgeModel) -> float:
    return model.weight if model.buffer_weight is None else model.buffer_weight


@dataclass(frozen=True, slots=True)
class HeldOutSet:
    """A held-out set, scaled and checked once."""

    model: models.Model
    x: models.Floats
    y: models.Labels

    def evaluate(self, data: Buffer) -> Evaluation:
        """Return how good the model in these safetensors bytes is."""
        tensors = decode_tensors(data, self.model.manifest())
        weights = {name: tensor.astype(np.float32) for name, tensor in tensors.items()}
        if isinstance(self.model, ScoredGraph):
            return self.model.evaluate(weights, self.x, self.y)
        return evaluate(self.model, weights, self.x, self.y)


def held_out(recipe: Recipe, task: TaskFile | None = None) -> HeldOutSet | None:
    """Load the recipe's held-out set; None if it has none, or if nothing here can score by it."""
    name = recipe.evaluation.dataset
    if name == NO_DATASET:
        return None
    dataset: Dataset = load(name, features=recipe.model.features)
    expect_width(name, dataset.x, recipe.model)
    x = scaled(dataset.x, recipe.data)
    expect_fit(name, x, dataset.y, recipe.model)
    model: models.Model | None = models.create(recipe.model)
    if isinstance(model, Graph) and task is not None:
        model = scored(model, task.once, task.onnx)
    return None if model is None else HeldOutSet(_quick(model), x, dataset.y)


@dataclass(frozen=True)
class _QuickCnn(models.Cnn):
    session: "OnnxSession"

    def forward(self, weights: models.Weights, x: models.Inputs) -> models.Doubles:
        return self.session.forward(weights, densed(x))


def _quick(model: models.Model) -> models.Model:
    packages = ("onnx", "onnxruntime")
    if not isinstance(model, models.Cnn) or not all(find_spec(name) for name in packages):
        return model
    from fedagent_task.onnx_session import OnnxSession  # noqa: PLC0415 - optional packages

    from .onnx_export import to_graph  # noqa: PLC0415

    return _QuickCnn(model.spec, OnnxSession(to_graph(model.spec), model))
