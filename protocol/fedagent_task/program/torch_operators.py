"""Each operator of the list as something to call, with what torch itself does not bound."""

import math
import operator as python
from collections.abc import Callable
from functools import cache

import torch

from fedagent_task.errors import TaskFormatError

from .operators import MAX_INTEGER, operators
from .spec import MAX_LIST

MAX_STEPS = 4096
"""Longest sequence of a recurrent layer."""
MAX_LAYERS = 64

Value = object
"""A tensor, tensors in a list, or a number."""
Function = Callable[..., Value]

_NUMBERS: dict[str, Function] = {
    "add": python.add,
    "sub": python.sub,
    "mul": python.mul,
    "floordiv": python.floordiv,
    "truediv": python.truediv,
    "mod": python.mod,
    "max": max,
    "min": min,
    "neg": python.neg,
    "pow": math.pow,
    "sqrt": math.sqrt,
    "of": float,
}


@cache
def function_of(name: str) -> Function:
    """Return what computes an operator of the list, or raise `TaskFormatError`."""
    found = operators()[name].torch
    if found is None:
        base, _, what = name.partition(".")
        return python.getitem if base == "list" else _bounded(_NUMBERS[what])
    try:
        function: Function = getattr(getattr(torch.ops.aten, found[0]), found[1])
    except AttributeError as error:
        raise TaskFormatError(name, f"torch {torch.__version__} has none; update it") from error
    if name in _BEFORE:
        return _guarded(function, _BEFORE[name])
    return function


@cache
def takes_device(name: str) -> bool:
    """Whether an operator makes a tensor out of none, so that it must be told where."""
    entry = operators()[name]
    if entry.torch is None or any(kind[0] in "TL" for kind in entry.kinds):
        return False
    function = getattr(getattr(torch.ops.aten, entry.torch[0]), entry.torch[1])
    return any(argument.name == "device" for argument in function._schema.arguments)  # noqa: SLF001 - torch offers no other


def _bounded(function: Function) -> Function:
    def call(*numbers: Value) -> Value:
        value = function(*numbers)
        if not isinstance(value, int | float) or abs(value) > MAX_INTEGER:
            raise OverflowError("a number is over its limit")
        return value

    return call


def _guarded(function: Function, check: Callable[..., None]) -> Function:
    def call(*args: Value, **named: Value) -> Value:
        check(*args, **named)
        return function(*args, **named)

    return call


def _few(count: int, most: int = MAX_LIST) -> None:
    if count > most:
        raise OverflowError(f"makes {count} parts, the limit is {most}")


def _divided(
    x: "torch.Tensor", by: "torch.Tensor | float", rounding_mode: str | None = None
) -> None:
    """Refuse what may end the process: the least whole number by -1, cut off."""
    divisor = torch.is_floating_point(by) if isinstance(by, torch.Tensor) else type(by) is float
    if rounding_mode == "trunc" and not (x.is_floating_point() or divisor):
        raise TypeError("does not cut off whole numbers; write rounding_mode='floor'")


def _recurrent(x: "torch.Tensor", *rest: Value) -> None:
    starts = rest[0] if isinstance(rest[0], list) else rest[:1]
    for start in starts:
        # Torch makes a tensor of each row before it looks whether the rows are layers.
        if isinstance(start, torch.Tensor) and start.dim():
            _few(start.shape[0], 2 * MAX_LAYERS)
    layers = next((one for one in rest if type(one) is int), 0)
    _few(layers, MAX_LAYERS)
    _few(max(x.shape[:-1], default=0) if x.dim() < 3 else max(x.shape[:2]), MAX_STEPS)


_BEFORE: dict[str, Callable[..., None]] = {
    "unbind.int": lambda x, dim=0: _few(x.shape[dim]),
    "split.Tensor": lambda x, size, dim=0: _few(-(-x.shape[dim] // size)),
    "chunk": lambda _x, chunks, *_rest: _few(chunks),
    "tensor_split.sections": lambda _x, chunks, *_rest: _few(chunks),
    "div.Tensor_mode": _divided,
    "lstm.input": _recurrent,
    "gru.input": _recurrent,
    "rnn_tanh.input": _recurrent,
    "rnn_relu.input": _recurrent,
}
"""What is looked at before a call that makes lists or loops."""
