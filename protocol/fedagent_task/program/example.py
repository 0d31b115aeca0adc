"""The example batch of a task: what it says of inputs and labels, and what it may not change."""

import inspect
import io
import logging
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import get_args

import torch
from torch import nn

from fedagent_task.errors import RecipeError

from .spec import MAX_INPUTS, Input, InputDType, Target

_INPUTS = get_args(InputDType)
_HINTS = {
    "float64": "use .float()",
    "float16": "use .float()",
    "bfloat16": "use .float()",
    "int32": "use .long()",
    "int16": "use .long()",
    "uint8": "use .float() or .long()",
}


@dataclass(frozen=True, slots=True)
class Example:
    """A batch of at least two samples, and the columns of a row that make each input."""

    inputs: "tuple[torch.Tensor, ...]"
    target: "torch.Tensor | None"
    columns: tuple[Input, ...]
    label: Target | None


def example_of(given: object, model: "nn.Module") -> Example:
    """Return the example as export takes it; `RecipeError` says what does not fit."""
    if not isinstance(given, tuple | list) or len(given) < 2:
        hint = "write example=(x, y), with y = None where the loss takes no label"
        raise RecipeError("example", "is not a batch of inputs and target", hint)
    *inputs, target = given
    if len(inputs) == 1 and isinstance(inputs[0], tuple | list):
        given = (*inputs[0], target)  # ((x1, x2), y), as data loaders give it
        *inputs, target = given
    if len(inputs) > MAX_INPUTS:
        raise RecipeError("example", f"has over {MAX_INPUTS} inputs", "join some of them")
    tensors = [one for one in given if one is not None]
    if not all(isinstance(one, torch.Tensor) and one.dim() for one in tensors) or None in inputs:
        raise RecipeError("example", "has parts that are not batches", "give tensors, batch first")
    if len({len(one) for one in tensors}) != 1 or not len(tensors[0]):
        hint = "give the same number of samples everywhere, batch first"
        raise RecipeError("example", "has parts of different lengths", hint)
    names = _names(model, len(inputs))
    columns, start = [], 0
    for name, one in zip(names, inputs, strict=True):
        kind = _kind(f"input {name}", one, _INPUTS)
        columns.append(Input(name, start, tuple(one.shape[1:]), kind))  # type: ignore[arg-type] # one of the names
        start += math.prod(one.shape[1:])
    if len(tensors[0]) == 1:
        # Of one sample export concludes that there is always one.
        inputs = [torch.cat([one, one]) for one in inputs]
        target = None if target is None else torch.cat([target, target])
    ready = tuple(one.detach().cpu() for one in inputs)
    return Example(
        ready, None if target is None else target.detach().cpu(), tuple(columns), _label(target)
    )


def _label(target: "torch.Tensor | None") -> Target | None:
    if target is None:
        return None
    kind = _kind("target", target, ("int64", "float32"))
    shape = tuple(target.shape[1:])
    if any(size != 1 for size in shape) or len(shape) > 2:
        hint = "pass the rest as inputs, with None as target: loss(output, *inputs)"
        raise RecipeError("target", f"has {math.prod(shape)} numbers for a sample, not one", hint)
    return Target(kind, (1,) * len(shape))  # type: ignore[arg-type] # one of the names


def _kind(what: str, tensor: "torch.Tensor", known: tuple[str, ...]) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    if kind not in known:
        hint = _HINTS.get(kind, f"give one of {', '.join(known)}")
        raise RecipeError(what, f"is of {kind}, not {' or '.join(known)}", hint)
    return kind


def _names(model: "nn.Module", count: int) -> list[str]:
    try:
        found = list(inspect.signature(model.forward).parameters)[:count]
    except (TypeError, ValueError):
        found = []
    good = len(found) == count and all(re.fullmatch(r"\w{1,64}", name, re.ASCII) for name in found)
    return found if good else [f"x{index}" for index in range(1, count + 1)]


@contextmanager
def unchanged(module: "nn.Module") -> Iterator[None]:
    """Leave a module as it was: the values of its tensors, and what of it is in training."""
    before = {name: value.clone() for name, value in module.state_dict().items()}
    modes = {part: part.training for part in module.modules()}
    try:
        yield
    finally:
        module.load_state_dict(before)
        for part, training in modes.items():
            part.training = training


@contextmanager
def quiet() -> Iterator[None]:
    """Keep back what torch itself prints of an export: it is of its inner working."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        nowhere = io.StringIO()
        with warnings.catch_warnings(), redirect_stderr(nowhere), redirect_stdout(nowhere):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
