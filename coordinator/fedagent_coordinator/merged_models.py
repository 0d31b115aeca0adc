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
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedagent_node.blobs import BlobStore
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import (
    Manifest,
    decode_tensors,
    encode_tensors,
    locate,
    tensor_at,
)
from fedagent_task.aggregation import (
    CONTROL,
    Arrays,
    Contribution,
    Rules,
    RunningMean,
    Strategy,
    Weighed,
)
from fedagent_task.aggregation.alignment import Signs, Sketch, gram_of, judged
from fedagent_task.aggregation.averaging import FedAvg
from fedagent_task.aggregation.bounds import Told, remembered, settled, told_of
from fedagent_task.aggregation.combining import combine
from fedagent_task.aggregation.robust import PLAIN, Robust
from fedagent_task.aggregation.sums import blocks

from .core.effects import Merge, Merged

Tensors = dict[str, npt.NDArray[np.generic]]
KEPT = "robust/norms"
"""Tensor of the state: float64[n, 2], norms of moves and of control variates."""
AGAINST = "points against the other edges"
_AVERAGE = FedAvg()


class EdgeModel(NamedTuple):
    """One edge model, and how much it and its buffers count."""

    digest: str
    tensors: Tensors
    weight: float
    buffer_weight: float


def merge_files(
    blobs: BlobStore,
    manifest: Manifest,
    merge: Merge,
    strategy: Strategy = _AVERAGE,
    rule: Robust = PLAIN,
) -> Merged:
    """Average edge models by digest and weight into a global one; one alone is that model.

    The models are mapped, not read, and summed in float64 one tensor at a time. A strategy that
    acts on the mean has it, the last model and what it kept in memory; a robust rule has the models
    that it shortens, and with a block of all of them what needs all. A model that does not fit the
    manifest, or is not finite, is left out with a reason, so that one edge cannot spoil the global
    one. Who commits what is made syncs its files before.
    """
    rules, robust = merge.facts.rules, type(rule) is not Robust
    with ExitStack() as stack:
        usable, refused = _opened(stack, blobs, manifest, merge)
        if not usable:
            return Merged(merge.round, "", refused)
        base: Tensors = {}
        if robust or strategy.acts:
            base = decode_tensors(blobs.get(merge.base), manifest)
        data = blobs.get(merge.state) if merge.state else b""
        former: Mapping[str, npt.NDArray[np.generic]] = {}
        if data:
            former = {one.spec.name: tensor_at(data, one) for one in locate(data)}
        usual = {KEPT: former[KEPT]} if KEPT in former else {}
        former = {name: one for name, one in former.items() if name != KEPT}
        mean: Mapping[str, npt.NDArray[np.generic]] | None = None
        changed = strategy.acts
        if robust:
            own = [one.tensors for one in usable]
            found = held(rule, base, own, rules, usual.get(KEPT))
            usual, changed = {KEPT: found.norms}, changed or found.changed
            kept = []
            for one, tensors, out in zip(usable, found.tensors, found.left_out, strict=True):
                if out:
                    refused[one.digest] = AGAINST
                else:
                    kept.append(one._replace(tensors=tensors))
            usable = kept
            if not rule.streams and len(usable) > 2:
                mean = located(rule, base, own, rules)
        if len(usable) == 1 and not changed:
            state = blobs.put(encode_tensors(usual), durable=False) if usual else ""
            return Merged(merge.round, usable[0].digest, refused, state)
        model = _means(usable, manifest, rules) if mean is None else mean
        if strategy.acts:
            model, former = strategy.server(base, model, former, merge.facts)
        if wrong := _unusable(model, manifest):
            return Merged(merge.round, "", {**refused, merge.base: f"the server's step {wrong}"})
        after = {**former, **usual}
        state = blobs.put(encode_tensors(after), durable=False) if after else ""
        merged = blobs.put(encode_tensors(model), durable=False)
        return Merged(merge.round, merged, refused, state)


def _opened(
    stack: ExitStack, blobs: BlobStore, manifest: Manifest, merge: Merge
) -> tuple[list[EdgeModel], dict[str, str]]:
    """Return models, mapped until the stack ends, and why the others are none."""
    usable: list[EdgeModel] = []
    refused: dict[str, str] = {}
    buffers = merge.buffers or tuple(weight for _, weight in merge.models)
    for (digest, weight), buffer in zip(merge.models, buffers, strict=True):
        try:
            file = stack.enter_context(blobs.path(digest).open("rb"))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            tensors = decode_tensors(data, manifest)
        except FileNotFoundError:
            refused[digest] = "missing"
        except ProtocolError as error:
            refused[digest] = f"{error.reason}: {error}"
        else:
            if all(np.isfinite(tensor).all() for tensor in tensors.values()):
                usable.append(EdgeModel(digest, tensors, weight, buffer))
            else:
                refused[digest] = "non_finite"
    return usable, refused


def _unusable(model: Arrays, manifest: Manifest) -> str:
    """Return what is wrong with what a strategy made, or an empty string."""
    if Manifest.of(model) != manifest:
        return "has other tensors than the model"
    finite = all(np.isfinite(tensor).all() for tensor in model.values())
    return "" if finite else "is not finite"


def _means(models: Sequence[EdgeModel], manifest: Manifest, rules: Rules) -> Tensors:
    # What is newest nobody knows of edges: that of the one which learnt most.
    newest = max(models, key=lambda one: (one.buffer_weight, one.digest)).tensors
    found: Tensors = {}
    for spec in manifest.specs:
        name = spec.name
        if name in rules.latest:
            found[name] = newest[name]
            continue
        mean = RunningMean()
        for one in models:
            weight = one.buffer_weight if name in rules.mean else one.weight
            mean.add({name: one.tensors[name]}, weight)
        found |= mean.apply({name: np.zeros_like(newest[name])})
    return found


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
    terms = settled(rule, _AVERAGE.weigh, round_, past)
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
    plain = Weighed(1.0, 1.0)
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


def _shortened(base: Arrays, model: Tensors, term: Weighed, rules: Rules) -> Tensors:
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
