"""Edge models become a global one: their mean (ALGORITHMS section 1), or a strategy's step.

An edge can lie as well as a device. Under any robust rule moves are bounded, and an edge that does
harm is left out (`aggregation.edges`). What is kept of that is in the file of the server's state,
which is committed with the model.
"""

import mmap
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
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
from fedagent_task.aggregation import CONTROL, Arrays, Rules, RunningMean, Strategy
from fedagent_task.aggregation.alignment import Floats
from fedagent_task.aggregation.averaging import FedAvg
from fedagent_task.aggregation.edges import CLIP, LARGEST_LOSS, harmful, opposed, usual_move
from fedagent_task.aggregation.robust import PLAIN, Robust
from fedagent_task.aggregation.sums import blocks

from .core.effects import Merge, Merged

Tensors = dict[str, npt.NDArray[np.generic]]
Judge = Callable[[Arrays], Floats]
"""What a model loses on each part of the samples that nobody reports on, float64[PARTS]."""
_OURS = "robust/"
USUAL, BEST, COST = f"{_OURS}usual", f"{_OURS}best", f"{_OURS}cost/"
"""Tensors of the state: how far edges move, float64[2] with that of control variates; what the best
model lost; and named after each edge what it cost the merges and whether it was left out."""
_NEW = np.array([np.nan, 0.0])
AGAINST = "points against the other edges"
HARM = "the merge is better without it on the held-out samples"
_AVERAGE = FedAvg()


class EdgeModel(NamedTuple):
    """One edge model, and how much it and its buffers count."""

    digest: str
    tensors: Tensors
    weight: float
    buffer_weight: float
    edge: str


def merge_files(
    blobs: BlobStore,
    manifest: Manifest,
    merge: Merge,
    strategy: Strategy = _AVERAGE,
    rule: Robust = PLAIN,
    judge: Judge | None = None,
) -> Merged:
    """Average edge models by digest and weight into a global one; one alone is that model.

    The models are mapped, not read, and summed in float64 one tensor at a time. A strategy that
    acts on the mean has it, the last model and what it kept in memory; a robust rule has the models
    that it shortens, and a `judge` one mean at a time. A model that does not fit the manifest, is
    not finite, or does harm is left out with a reason; without any the last model stays. Who
    commits what is made syncs its files before.
    """
    rules, robust = merge.facts.rules, type(rule) is not Robust
    with ExitStack() as stack:
        usable, refused = _opened(stack, blobs, manifest, merge)
        if not usable:
            return Merged(merge.round, "", refused)
        base: Tensors = {}
        if robust or strategy.acts:
            base = decode_tensors(blobs.get(merge.base), manifest)
        former, kept = _remembered(blobs, merge)
        changed, farthest = strategy.acts, ""
        if robust:
            found = _held(usable, base, manifest, merge, kept, judge)
            usable, kept = found.models, found.kept
            refused |= found.left_out
            changed, farthest = changed or found.changed, found.farthest
        if not usable:
            state = blobs.put(encode_tensors({**former, **kept}), durable=False)
            return Merged(merge.round, merge.base, refused, state, farthest)
        if not changed and len({one.digest for one in usable}) == 1:
            state = blobs.put(encode_tensors(kept), durable=False) if kept else ""
            return Merged(merge.round, usable[0].digest, refused, state, farthest)
        model: Arrays = _means(usable, manifest, rules)
        if strategy.acts:
            model, former = strategy.server(base, model, former, merge.facts)
        if wrong := _unusable(model, manifest):
            return Merged(merge.round, "", {**refused, merge.base: f"the server's step {wrong}"})
        after = {**former, **kept}
        state = blobs.put(encode_tensors(after), durable=False) if after else ""
        merged = blobs.put(encode_tensors(model), durable=False)
        return Merged(merge.round, merged, refused, state, farthest)


def _remembered(blobs: BlobStore, merge: Merge) -> tuple[Arrays, Tensors]:
    """Return what the strategy knew after the last merge, and what is kept of edges."""
    data = blobs.get(merge.state) if merge.state else b""
    found = {one.spec.name: tensor_at(data, one) for one in locate(data)} if data else {}
    ours = {name: one for name, one in found.items() if name.startswith(_OURS)}
    return {name: one for name, one in found.items() if name not in ours}, ours


def _opened(
    stack: ExitStack, blobs: BlobStore, manifest: Manifest, merge: Merge
) -> tuple[list[EdgeModel], dict[str, str]]:
    """Return models, mapped until the stack ends, and by edge why the others are none."""
    usable: list[EdgeModel] = []
    refused: dict[str, str] = {}
    for digest, weight, buffer, edge in merge.models:
        try:
            file = stack.enter_context(blobs.path(digest).open("rb"))
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            tensors = decode_tensors(data, manifest)
        except FileNotFoundError:
            refused[edge] = "missing"
        except ProtocolError as error:
            refused[edge] = f"{error.reason}: {error}"
        else:
            if all(np.isfinite(tensor).all() for tensor in tensors.values()):
                usable.append(EdgeModel(digest, tensors, weight, buffer, edge))
            else:
                refused[edge] = "non_finite"
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
    """What edge models come to: as they are, but for those that are shortened or left out."""

    models: list[EdgeModel]
    left_out: dict[str, str]
    kept: Tensors
    changed: bool
    farthest: str


def _held(
    models: Sequence[EdgeModel],
    base: Tensors,
    manifest: Manifest,
    merge: Merge,
    before: Tensors,
    judge: Judge | None,
) -> Held:
    """Return what edge models count as, and what is kept of them."""
    rules = merge.facts.rules
    gram, control = (_gram(base, models, rules, controls=controls) for controls in (False, True))
    moves = np.sqrt(np.diag(gram)), np.sqrt(np.diag(control))
    last = before.get(USUAL, np.zeros(2)).astype(np.float64)
    usual = np.array(
        [
            usual_move(told, move.tolist(), known)
            for told, move, known in zip((merge.usual, 0.0), moves, last.tolist(), strict=True)
        ]
    )
    clips = [_clips(move, CLIP * one) for move, one in zip(moves, usual, strict=True)]
    shortened = [
        one if clip == control_clip == 1.0 else _shortened(base, one, clip, control_clip, rules)
        for one, clip, control_clip in zip(models, *clips, strict=True)
    ]
    kept: Tensors = {**before, USUAL: usual}
    known = [before.get(COST + one.edge, _NEW) for one in models]
    costs, doubted = np.array(known, dtype=np.float64).T
    # One alone is not judged: there is nothing that it could be told from, but its past.
    asks = judge if len(models) > 1 or doubted.any() else None
    losses = None if asks is None else _losses(asks, base, shortened, manifest, rules)
    best = before[BEST].astype(np.float64) if BEST in before else None
    if losses is not None and best is None:
        best = losses(())
    if losses is None or best is None or best.max() >= LARGEST_LOSS:
        out, why = opposed(gram), AGAINST
    else:
        (out, costs), why = harmful(losses, best, costs, doubted > 0), HARM
        for one, cost, left in zip(models, costs, out, strict=True):
            kept[COST + one.edge] = np.array([cost, left])
        now = losses(np.flatnonzero(~out).tolist())
        kept[BEST] = now if now.mean() < best.mean() else best
    return Held(
        [one for one, left in zip(shortened, out, strict=True) if not left],
        {one.edge: why for one, left in zip(models, out, strict=True) if left},
        kept,
        bool(out.any()) or any(clip < 1.0 for each in clips for clip in each),
        models[int(moves[0].argmax())].edge,
    )


def _losses(
    judge: Judge, base: Tensors, models: Sequence[EdgeModel], manifest: Manifest, rules: Rules
) -> Callable[[Collection[int]], Floats]:
    """Return what tells how much the mean of some edges loses, each mean judged once."""
    known: dict[frozenset[int], Floats] = {}

    def losses(places: Collection[int]) -> Floats:
        key = frozenset(places)
        if key not in known:
            some = [models[place] for place in sorted(key)]
            known[key] = judge(_means(some, manifest, rules) if some else base)
        return known[key]

    return losses


def _clips(moves: Floats, limit: float) -> list[float]:
    return [limit / move if 0 < limit < move else 1.0 for move in moves.tolist()]


def _gram(base: Arrays, models: Sequence[EdgeModel], rules: Rules, *, controls: bool) -> Floats:
    """Return the inner products of moves, or of what control variates moved, float64[n, n]."""
    gram = np.zeros((len(models), len(models)))
    for name, array in base.items():
        if name in rules.latest or name.startswith(CONTROL) is not controls:
            continue
        start, each = array.reshape(-1), [one.tensors[name].reshape(-1) for one in models]
        for block in blocks(start.size):
            apart = np.stack([one[block].astype(np.float64) for one in each]) - start[block].astype(
                np.float64
            )
            gram += apart @ apart.T
    return gram


def _shortened(
    base: Arrays, model: EdgeModel, clip: float, control_clip: float, rules: Rules
) -> EdgeModel:
    """Return the model so much nearer to the base."""
    found: Tensors = {}
    for name, array in base.items():
        by = control_clip if name.startswith(CONTROL) else clip
        if by == 1.0 or name in rules.latest:
            found[name] = model.tensors[name]
            continue
        start = array.astype(np.float64)
        moved = start + by * (model.tensors[name].astype(np.float64) - start)
        found[name] = moved.astype(array.dtype)
    return model._replace(tensors=found)
