"""Recurrent layers on the meta device: two steps stand for all of a sequence.

There torch takes a recurrent layer step by step, at 10 ms each: minutes for a long sequence,
where the layer itself takes milliseconds. Each step holds as much memory as any other, so two are
run, which check every shape, and what they take is counted for the rest.
"""

from typing import Any

import torch

from .meta_memory import Watch

STEPS = 2
_BATCH_FIRST = 8
"""Argument that says whether the batch is the first dimension."""


def is_recurrent(name: str) -> bool:
    """Whether an operator is one of them."""
    return name in ("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")


def stretched(step: Any, args: list[Any], watch: Watch | None) -> Any:
    """Run a layer on the start of its sequence; return outputs of the whole length."""
    x = args[0]
    axis = 1 if x.dim() == 3 and len(args) > _BATCH_FIRST and args[_BATCH_FIRST] else 0
    length = int(x.shape[axis])
    if x.dim() < 2 or length <= 2 * STEPS:
        return step(*args)
    before = watch.live if watch is not None else 0
    few = step(x.narrow(axis, 0, STEPS), *args[1:])
    taken = (watch.live - before if watch is not None else 0) // STEPS
    whole = _Stretched.apply(few[0], axis, length, taken * (length - STEPS))
    return (whole, *few[1:])


class _Stretched(torch.autograd.Function):  # type: ignore[misc] # torch is not there to mypy
    """A sequence of `length` for its start, with `size` bytes that live as long as it does."""

    @staticmethod
    def forward(ctx: Any, x: "torch.Tensor", axis: int, length: int, size: int) -> "torch.Tensor":
        """Return what has the shape of the whole; no value is looked at."""
        shape = list(x.shape)
        shape[axis] = length
        ctx.axis, ctx.length = axis, int(x.shape[axis])
        ctx.save_for_backward(torch.empty(size, dtype=torch.uint8, device="meta"))
        return x.new_empty(shape)

    @staticmethod
    def backward(ctx: Any, slope: "torch.Tensor") -> tuple[Any, ...]:
        """Return the slope of the start."""
        return slope.narrow(ctx.axis, 0, ctx.length), None, None, None
