"""What an edge may do to the merged model: an edge can lie as well as a device.

The same rules as at an edge (docs/robust.md), of edge models less the last global one. What is
usual is kept in the file of the server's state, which is committed with the model.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from fedagent_task.aggregation import CONTROL, Arrays, Contribution, Rules
from fedagent_task.aggregation.alignment import gram_of, judged
from fedagent_task.aggregation.averaging import FedAvg
from fedagent_task.aggregation.bounds import Term, Told, remembered, settled, told_of
from fedagent_task.aggregation.combining import combine
from fedagent_task.aggregation.robust import Robust
from fedagent_task.aggregation.sketch import Signs, Sketch
from fedagent_task.aggregation.sums import blocks

Tensors = dict[str, npt.NDArray[np.generic]]
KEPT = "robust/norms"
"""Tensor of the state: float64[n, 2], norms of moves and of control variates."""
AGAINST = "points against the other edges"


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
    terms = [term for _, term in settled(rule, FedAvg().weigh, round_, past)]
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
