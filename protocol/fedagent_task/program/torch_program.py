"""A program run by torch: the nodes in order, each by ``torch.ops.aten``; no code is made.

Before a batch of a new size is computed, the graph is run on torch's meta device, where tensors
have shapes but no memory, and refused by the name of the node that would hold too much.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt
import psutil
import torch
from torch import nn

from fedagent_protocol.errors import safe_text
from fedagent_task.errors import TaskFormatError
from fedagent_task.models.graph import array_of

from .codec import columns, elements
from .meta import Watch
from .plan import Plan
from .spec import LOSS, TRAVELS, Program, Role

Tensors = Mapping[str, npt.NDArray[np.generic]]
Batch = tuple[list["torch.Tensor"], "torch.Tensor | None"]
"""Inputs and target, as `TorchProgram.inputs_of` makes them."""


class TorchProgram:
    """A model and its loss; `load` what it begins from before use.

    `limit` is in bytes, for all that a step holds at once; None: half of the free memory when a
    batch size is first met.

    Raises:
        TaskFormatError: It asks for more memory than the limit, or for what this torch has not.
    """

    def __init__(self, program: Program, *, device: str = "cpu", limit: int | None = None) -> None:
        self.program = program
        self.device = torch.device(device)
        self._limit = limit
        self._checked: set[tuple[int, bool]] = set()
        most = self._most()
        if (size := sum(4 * elements(one.shape) for one in program.tensors)) > most:
            raise TaskFormatError("tensors", f"would hold {size} bytes, the limit is {most} here")
        self._all = _made(program, self.device)
        constants = map(array_of, program.constants)
        self.constants = [torch.from_numpy(one).to(self.device) for one in constants]
        self.parameters = self._named(learnt=True)
        """What is learnt, by name: leaves with a gradient, of the roles train and local."""
        self.buffers = self._named(learnt=False)
        """All other tensors by name, frozen ones among them."""
        self._train = Plan(program, program.train, "train", device)
        self._evaluate = Plan(program, program.evaluate, "evaluate", device)
        self.module: nn.Module = _Module(self)
        """The same as a module: ``module(*inputs)`` is the output, ``module.loss(batch)``."""

    def load(self, tensors: Tensors) -> None:
        """Take these values, whatever their roles; raises `TaskFormatError` if they do not fit."""
        for name, value in tensors.items():
            mine = self.parameters.get(name, self.buffers.get(name))
            if mine is None or tuple(mine.shape) != value.shape:
                raise TaskFormatError(
                    name[:64], f"of shape {list(value.shape)} is not the program's"
                )
            with torch.no_grad():
                mine.copy_(torch.tensor(value))

    def inputs_of(self, x: npt.NDArray[np.generic], y: npt.NDArray[np.generic]) -> Batch:
        """Return rows [n, features] and labels [n] as what the graphs take: copies."""
        if x.ndim != 2 or x.shape[1] != (width := columns(self.program)):
            raise TaskFormatError("inputs", f"are rows of {width} columns, not {list(x.shape)}")
        given = []
        for one in self.program.inputs:
            part = x[:, one.start : one.start + elements(one.shape)]
            shaped = part.astype(one.dtype).reshape(len(x), *one.shape)
            given.append(torch.from_numpy(shaped).to(self.device))
        target = self.program.target
        if target is None:
            return given, None
        labels = y.astype(target.dtype).reshape(len(x), *target.shape)
        return given, torch.from_numpy(labels).to(self.device)

    def loss(self, batch: Batch) -> "torch.Tensor":
        """Return the mean loss of a batch as training sees it; its gradient can be taken."""
        self.check(len(batch[0][0]), training=True)
        _, loss = self._train.run(self._values(batch), output=False)
        return _scalar(loss)

    def backward(self, loss: "torch.Tensor") -> None:
        """Take the gradient of a loss, or raise `TaskFormatError` where it has none."""
        try:
            loss.backward()
        except RuntimeError as error:
            reason = f"has no gradient: {safe_text(error, limit=160)}"
            raise TaskFormatError("train", reason) from error

    def evaluate(self, batch: Batch) -> "tuple[torch.Tensor, float]":
        """Return the output and the mean loss as scoring sees them, without a gradient."""
        self.check(len(batch[0][0]), training=False)
        with torch.no_grad():
            output, loss = self._evaluate.run(self._values(batch))
        return output, float(_scalar(loss))

    def output(self, inputs: "list[torch.Tensor]", *, training: bool) -> "torch.Tensor":
        """Return the output alone, with a gradient: what needs the target is left out."""
        self.check(len(inputs[0]), training=training)
        plan = self._train if training else self._evaluate
        return plan.run(self._values((inputs, None)), loss=False)[0]

    def tensors(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return what a model file holds: copies of the tensors of roles train, mean, latest."""
        return self._of(*TRAVELS)

    def local(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the tensors that stay on the device."""
        return self._of("local")

    def check(self, count: int, *, training: bool) -> int:
        """Refuse a batch of `count` samples that would go over the limit; return bytes at most.

        Raises:
            TaskFormatError: It names the node, or what is wrong with the graph's shapes.
        """
        if (count, training) in self._checked:
            return 0
        with ExitStack() as stack:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            watch = stack.enter_context(Watch(self._most(), f"a batch of {count}"))
            peak = self._watched(watch, count, training=training)
        self._checked.add((count, training))
        return peak

    def _watched(self, watch: Watch, count: int, *, training: bool) -> int:
        program = self.program
        plan = Plan(
            program,
            program.train if training else program.evaluate,
            "train" if training else "evaluate",
            "meta",
        )
        values = self._meta_values(count)
        for value in values:
            if isinstance(value, torch.Tensor):
                watch.add(value)
        fixed = self._fixed(values)
        before = [one._version for one in fixed]  # noqa: SLF001 - torch's own count of writes
        with torch.set_grad_enabled(training):
            _, loss = plan.run(values, watch=watch)
            if before != [one._version for one in fixed]:  # noqa: SLF001 - the same
                raise TaskFormatError(
                    "train" if training else "evaluate", "writes to what must not change"
                )
            if training:
                watch.at = "train, on the way back"
                self.backward(_scalar(loss))
        return watch.peak

    def _fixed(self, values: list[object]) -> "list[torch.Tensor]":
        """Return what no node may write to, by whatever view of it."""
        program = self.program
        places = [n for n, one in enumerate(program.tensors) if one.learnt or one.role == "frozen"]
        places += range(program.first_constant, program.first_node)
        return [one for place in places if isinstance(one := values[place], torch.Tensor)]

    def _meta_values(self, count: int) -> list[object]:
        program, target = self.program, self.program.target
        return [
            *_made(program, torch.device("meta")),
            *(_meta((count, *one.shape), one.dtype) for one in program.inputs),
            None if target is None else _meta((count, *target.shape), target.dtype),
            *(_meta(one.shape, one.dtype) for one in program.constants),
        ]

    def named(self) -> "Iterator[tuple[str, torch.Tensor]]":
        """Yield what the author's modules keep, each under all of its names."""
        pairs = zip(self.program.held, (*self._all, *self.constants), strict=True)
        return ((name, value) for one, value in pairs for name in one.names)

    def _values(self, batch: Batch) -> list[object]:
        return [*self._all, *batch[0], batch[1], *self.constants]

    def _named(self, *, learnt: bool) -> "dict[str, torch.Tensor]":
        pairs = zip(self.program.tensors, self._all, strict=True)
        return {one.name: tensor for one, tensor in pairs if one.learnt == learnt}

    def _of(self, *roles: Role) -> dict[str, npt.NDArray[np.float32]]:
        pairs = zip(self.program.tensors, self._all, strict=True)
        return {
            one.name: np.array(tensor.detach().cpu().numpy(), np.float32)
            for one, tensor in pairs
            if one.role in roles
        }

    def _most(self) -> int:
        if self._limit is not None:
            return self._limit
        if self.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.device)[0])
        return int(psutil.virtual_memory().available) // 2


class _Module(nn.Module):  # type: ignore[misc] # torch is not there to mypy
    """A program with the names of its tensors, as an optimiser or a user's loop wants it."""

    def __init__(self, program: TorchProgram) -> None:
        super().__init__()
        object.__setattr__(self, "program", program)
        for name, tensor in program.named():
            place, last = _place(self, name)
            learnt = isinstance(tensor, nn.Parameter)
            # By whatever name: `loss`, `program`.
            kind = place._parameters if learnt else place._buffers  # noqa: SLF001
            kind[last] = tensor

    def forward(self, *inputs: "torch.Tensor") -> "torch.Tensor":
        """Return the output of a batch, as training or as scoring sees it."""
        return self.program.output(list(inputs), training=self.training)

    def loss(self, batch: Batch) -> "torch.Tensor":
        """Return the mean loss of a batch."""
        return self.program.loss(batch)

    def state_dict(self, *args: Any, **named: Any) -> Any:
        """Return what the author's own module takes: without the tensors of the loss."""
        whole = super().state_dict(*args, **named)
        for name in [name for name in whole if name.startswith(LOSS)]:
            del whole[name]
        return whole


def _place(module: "nn.Module", name: str) -> "tuple[nn.Module, str]":
    *path, last = name.split(".")
    for part in path:
        module = module._modules.setdefault(part, nn.Module())  # noqa: SLF001 - methods' names too
    return module, last


def _made(program: Program, device: "torch.device") -> "list[torch.Tensor]":
    made: list[torch.Tensor] = []
    for one in program.tensors:
        zeros = torch.zeros(one.shape, dtype=getattr(torch, one.dtype), device=device)
        made.append(nn.Parameter(zeros) if one.learnt else zeros)
    return made


def _meta(shape: tuple[int, ...], dtype: str) -> "torch.Tensor":
    return torch.empty(shape, dtype=getattr(torch, dtype), device="meta")


def _scalar(loss: "torch.Tensor") -> "torch.Tensor":
    if loss.numel() != 1:
        raise TaskFormatError("loss", f"is of shape {list(loss.shape)}, not one number")
    return loss.reshape(())
