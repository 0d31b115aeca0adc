"""Edge models become a global one: their mean (ALGORITHMS section 1), or a strategy's step.

An edge can lie as well as a device: the robust rules of an edge (docs/robust.md) hold here too, for
edge models less the last global one. What is usual is kept in the file of the server's state, which
is committed with the model.
"""

import mmap
import secrets
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

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
from fedagent_task.aggregation import (
    ALL_TRAIN,
    CONTROL,
    Arrays,
    Contribution,
    Rules,
    RunningMean,
    Strategy,
)
from fedagent_task.aggregation.alignment import gram_of, judged
from fedagent_task.aggregation.averaging import FedAvg
from fedagent_task.aggregation.bounds import Term, Told, remembered, settled, told_of
from fedagent_task.aggregation.combining import combine
from fedagent_task.aggregation.robust import PLAIN, Robust
from fedagent_task.aggregation.sketch import Signs, Sketch
from fedagent_task.aggregation.sums import blocks

from .core.effects import Merge, Merged

Tensors = dict[str, npt.NDArray[np.generic]]
KEPT = "robust/norms"
"""Tensor of the state: float64[n, 2], norms of moves and of control variates."""
AGAINST = "points against the other edges"
_AVERAGE = FedAvg()


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


def merge_files(
    blobs: BlobStore,
    manifest: Manifest,
    merge: Merge,
    strategy: Strategy = _AVERAGE,
    rule: Robust = PLAIN,
) -> Merged:
    """Average edge models by digest and weight into a durable global one.

    The models are mapped, not read, so that memory stays at one tensor. A strategy that acts on
    the mean has it, the last model and what it kept in memory; a robust rule has the models that
    it shortens, and with a block of all of them what needs all.
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
        if merge.base:
            return _stepped(blobs, manifest, merge, strategy, rule, models, missing)
        mean = merge_models(models, manifest, merge.facts.rules)
        if mean.data:
            blobs.put(mean.data)
        return Merged(merge.round, mean.digest, {**missing, **mean.refused})


def _stepped(
    blobs: BlobStore,
    manifest: Manifest,
    merge: Merge,
    strategy: Strategy,
    rule: Robust,
    models: Sequence[EdgeModel],
    missing: Mapping[str, str],
) -> Merged:
    """Do what rules make of the models; all files are durable before their names are told."""
    usable, refused = _usable(models, manifest)
    refused = {**missing, **refused}
    if not usable:
        return Merged(merge.round, "", refused)
    base = decode_tensors(blobs.get(merge.base), manifest)
    former = _arrays(blobs.get(merge.state)) if merge.state else {}
    usual = {KEPT: former.pop(KEPT)} if KEPT in former else {}
    mean: Mapping[str, npt.NDArray[np.generic]] | None = None
    if type(rule) is not Robust:
        rules, own = merge.facts.rules, [tensors for _, tensors in usable]
        found = held(rule, base, own, rules, usual.get(KEPT))
        usual = {KEPT: found.norms}
        refused |= {
            one.digest: AGAINST for (one, _), out in zip(usable, found.left_out, strict=True) if out
        }
        usable = [
            (one, tensors)
            for (one, _), tensors, out in zip(usable, found.tensors, found.left_out, strict=True)
            if not out
        ]
        if not rule.streams and len(usable) > 2:
            mean = located(rule, base, own, rules)
        elif len(usable) == 1 and not found.changed and not strategy.acts:
            kept = blobs.put(encode_tensors(usual))
            return Merged(merge.round, usable[0][0].digest, refused, kept)
    if mean is None:
        mean = _means(usable, manifest, merge.facts.rules)
    model: Mapping[str, npt.NDArray[np.generic]] = mean
    state: Mapping[str, npt.NDArray[np.generic]] = former
    if strategy.acts:
        model, state = strategy.server(base, mean, former, merge.facts)
    state = {**state, **usual}
    if wrong := _unusable(model, manifest):
        return Merged(merge.round, "", {**refused, merge.base: f"the server's step {wrong}"})
    kept = blobs.put(encode_tensors(state)) if state else ""
    return Merged(merge.round, blobs.put(encode_tensors(model)), refused, kept)


def _unusable(model: Mapping[str, npt.NDArray[np.generic]], manifest: Manifest) -> str:
    """Return what is wrong with what a strategy made, or an empty string."""
    if Manifest.of(model) != manifest:
        return "has other tensors than the model"
    finite = all(np.isfinite(tensor).all() for tensor in model.values())
    return "" if finite else "is not finite"


def _arrays(data: Buffer) -> Tensors:
    return {item.spec.name: tensor_at(data, item) for item in locate(data)}


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
class Held:
    """What edge models come to under a rule: as they are, but for those that are shortened."""

    tensors: list[Tensors]
    left_out: list[bool]
    norms: npt.NDArray[np.float64]
    changed: bool


def held(
    rule: Robust,
    base: Arrays,
    models: Sequence[Tensors],
    rules: Rules,
    before: npt.NDArray[np.generic] | None = None,
) -> Held:
    """Return what edge models count as, and what is kept of them; `before` is float64[n, 2]."""
    compared = rule.directions and len(models) > 1
    signs = Signs(secrets.randbits(63)) if compared else None
    sketches = [None if signs is None else Sketch(signs) for _ in models]
    norms = np.array([_norms(base, *one, rules) for one in zip(models, sketches, strict=True)])
    past = [
        Told(norm, beside, 1.0, 0.0, 0.0)
        for norm, beside in (() if before is None else before.tolist())
    ]
    round_ = [(Contribution(num_samples=1.0, norm=norm), beside) for norm, beside in norms.tolist()]
    terms = [term for _, term in settled(rule, _AVERAGE.weigh, round_, past)]
    out = [False] * len(models)
    if compared:
        gram = gram_of([sketch.values for sketch in sketches if sketch is not None])
        out = [bool(one) for one in judged(gram, np.full(len(models), np.nan))[1]]
    shortened = [
        model if term.is_plain else _shortened(base, model, term, rules)
        for model, term in zip(models, terms, strict=True)
    ]
    kept = remembered(past, [told_of(*one) for one in round_])
    return Held(
        shortened,
        out,
        np.array([[one.norm, one.control_norm] for one in kept]),
        any(out) or not all(term.is_plain for term in terms),
    )


def located(rule: Robust, base: Arrays, models: Sequence[Tensors], rules: Rules) -> Tensors:
    """Return the base moved by what a rule that needs all makes of the edges' moves."""
    plain = Term(1.0, 1.0)
    opened = [(partial(_move, base, model), plain) for model in models]
    return combine(rule, opened, rules).apply(base)


def _move(base: Arrays, model: Tensors) -> Arrays:
    return {
        name: model[name].astype(np.float64) - array.astype(np.float64)
        for name, array in base.items()
    }


def _norms(
    base: Arrays, model: Tensors, sketch: Sketch | None, rules: Rules
) -> tuple[float, float]:
    """Return the norms of a move and of its control variates, which are not in its sketch."""
    squares = [0.0, 0.0]
    for name, array in base.items():
        if name in rules.latest:
            continue
        one, other = array.reshape(-1), model[name].reshape(-1)
        for block in blocks(one.size):
            apart = other[block].astype(np.float64) - one[block].astype(np.float64)
            if sketch is not None and not name.startswith(CONTROL):
                sketch.take(apart)
            squares[name.startswith(CONTROL)] += float((apart * apart).sum())
    return float(np.sqrt(squares[0])), float(np.sqrt(squares[1]))


def _shortened(base: Arrays, model: Tensors, term: Term, rules: Rules) -> Tensors:
    """Return the model as far from the base as the term says."""
    found: Tensors = {}
    for name, array in base.items():
        by = term.control_clip if name.startswith(CONTROL) else term.clip
        if by == 1.0 or name in rules.latest:
            found[name] = model[name]
            continue
        start = array.astype(np.float64)
        found[name] = (start + by * (model[name].astype(np.float64) - start)).astype(array.dtype)
    return found
