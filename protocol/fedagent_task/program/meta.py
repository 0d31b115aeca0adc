"""What a program would hold in memory, reckoned on torch's meta device.

There torch takes a recurrent layer step by step, at 10 ms each: minutes for a long sequence,
where the layer itself takes milliseconds. Each step holds as much memory as any other, so two are
run, which check every shape, and what they take is counted for the rest.
"""

import math
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedagent_task.errors import TaskFormatError

MAX_CALLS = 200_000
"""Kernels of one pass forwards and backwards; a long recurrent layer has many."""
STEPS = 2
_BATCH_FIRST = 8
"""Argument of a recurrent layer that says whether the batch is the first dimension."""


class Watch(TorchDispatchMode):  # type: ignore[misc] # torch is not there to mypy
    """Counts the bytes of all live tensors, and refuses what goes over the limit.

    Tensors that autograd keeps for the way back are live. `at` names the node that runs.
    """

    def __init__(self, limit: int, at: str) -> None:
        super().__init__()
        self.limit, self.live, self.peak = limit, 0, 0
        self.at = at
        self._calls = 0
        self._alive: dict[int, weakref.ref[object]] = {}

    def __torch_dispatch__(
        self,
        func: "torch._ops.OpOverload",
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """Run one kernel and count what it made."""
        self._calls += 1
        if self._calls > MAX_CALLS:
            raise TaskFormatError(self.at, f"makes more than {MAX_CALLS} calls")
        result = func(*args, **(kwargs or {}))
        self._expect(self.live + _scratch(func, args, result))
        for one in result if isinstance(result, tuple | list) else (result,):
            if isinstance(one, torch.Tensor):
                self.add(one)
        return result

    def add(self, tensor: "torch.Tensor") -> None:
        """Count a tensor's storage, once however many views there are; raises `TaskFormatError`."""
        storage = tensor.untyped_storage()
        key = storage._cdata  # noqa: SLF001 - the storage's identity, as torch's own tools take it
        if key in self._alive:
            return
        size = int(storage.nbytes())
        self.live += size
        self._expect(self.live)

        def gone(_: object) -> None:
            self.live -= size
            self._alive.pop(key, None)

        self._alive[key] = weakref.ref(storage, gone)

    def _expect(self, size: int) -> None:
        self.peak = max(self.peak, size)
        if size > self.limit:
            raise TaskFormatError(
                self.at, f"would hold {size} bytes, the limit is {self.limit} here"
            )


def _scratch(func: "torch._ops.OpOverload", args: Sequence[Any], result: Any) -> int:
    """Return what a convolution holds besides its tensors, where its kernel unfolds the input.

    Those of single and half precision do not; of double it is hundreds of times the input.
    """
    aten = torch.ops.aten
    if func is aten.convolution.default:
        x, weight, after, transposed = args[0], args[1], result, args[6]
    elif func is aten.convolution_backward.default:
        x, weight, after, transposed = args[1], args[2], args[0], args[7]
    else:
        return 0
    if x.dtype.itemsize <= 4 and torch.backends.mkldnn.is_available():
        return 0
    places = len(x) * math.prod((x if transposed else after).shape[2:])
    return int(places * math.prod(weight.shape[1:]) * x.dtype.itemsize)


def is_recurrent(name: str) -> bool:
    """Whether an operator is a recurrent layer."""
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
