"""A program beside the module that it was made of: the same losses, the same gradients."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedagent_task.errors import RecipeError, TaskFormatError

from .example import Example, quiet, unchanged
from .roles import own_name
from .spec import Program
from .torch_program import Batch, TorchProgram

BATCH_MEND = "write x.shape[0] or -1 instead of that number"
_SLACK = 1e-3
"""Largest difference of a gradient, as a share of the whole gradient's length."""

_SINGLES = 8
"""Samples of an example that are tried alone."""
_WORDS = {
    "batch_norm": "batch norm",
    "instance_norm": "instance norm",
    "group_norm": "group norm",
    "var": "a variance",
    "std": "a deviation",
    "": "the loss",
}
"""Operators that need two samples, and what else may."""

Arrays = Mapping[str, npt.NDArray[np.float32]]
Gradients = Mapping[str, "torch.Tensor | None"]


def compared(program: Program, values: Arrays, whole: "nn.Module", example: Example) -> float:
    """Return the example's loss as scoring sees it.

    `whole` gives (output, loss) for (inputs, target).

    Raises:
        RecipeError: The program does something else than the module, or learns nothing.
    """
    with unchanged(whole), torch.random.fork_rng(devices=[]):
        plain, gradients = _learnt(whole, example)
        whole.eval()
        torch.manual_seed(1)
        with torch.no_grad():
            scored = float(whole(list(example.inputs), example.target)[1])
    ours = TorchProgram(program)
    ours.load(values)
    _any_batch(ours, len(example.inputs[0]))
    batch = (list(example.inputs), example.target)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        loss = ours.loss(batch)
        _same_loss(float(loss.detach()), plain)
        _same_gradients(_gradients(loss, ours.parameters), gradients)
        torch.manual_seed(1)
        of_scoring = ours.evaluate(batch)[1]
    _same_loss(of_scoring, scored)
    _a_mean(ours, example, of_scoring)
    return of_scoring


def needs_two(program: Program, values: Arrays, whole: "nn.Module", example: Example) -> str:
    """Return what of a program needs two samples to learn from, in words; nothing if one will do.

    It is so if the example teaches, but no sample of it alone does: that is an error, gives no
    finite number, or no gradient at all, as a sample's contrast with itself.
    """
    ours, target = TorchProgram(program), example.target
    lacks = ""
    with quiet(), unchanged(whole), torch.random.fork_rng(devices=[]):
        whole.train()
        if _lacks(ours, values, whole, (list(example.inputs), target)):
            return ""
        for i in range(min(len(example.inputs[0]), _SINGLES)):
            row = slice(i, i + 1)
            one = [x[row] for x in example.inputs], None if target is None else target[row]
            if not (lacks := _lacks(ours, values, whole, one)):
                return ""
    return lacks


def _lacks(ours: TorchProgram, values: Arrays, whole: "nn.Module", batch: Batch) -> str:
    """Return what keeps a batch from teaching; nothing if it teaches."""
    ours.load(values)
    try:
        whole(*batch)
        loss = ours.loss(batch)
    except (TaskFormatError, ValueError, RuntimeError):
        return _first_of(ours.program, "batch_norm", "instance_norm", "group_norm")
    slopes = [one for one in _gradients(loss, ours.parameters).values() if one is not None]
    moved = [ours.buffers[one.name] for one in ours.program.of_roles("mean")]
    finite = all(torch.isfinite(one).all() for one in (loss, *slopes, *moved))
    return (
        "" if finite and any(one.any() for one in slopes) else _first_of(ours.program, "var", "std")
    )


def _first_of(program: Program, *names: str) -> str:
    there = {node.op.partition(".")[0] for node in program.train.nodes}
    return _WORDS[next((name for name in names if name in there), "")]


def _learnt(whole: "nn.Module", example: Example) -> tuple[float, Gradients]:
    """Return what Python makes of the example in training."""
    learnt = {own_name(n): p for n, p in whole.named_parameters() if p.requires_grad}
    if not learnt:
        hint = "call requires_grad_(True) on the parameters to train"
        raise RecipeError("model", "has no trainable parameter", hint)
    whole.train()
    torch.manual_seed(1)
    with torch.enable_grad():
        loss = whole(list(example.inputs), example.target)[1]
    if not loss.requires_grad:
        hint = "compute it without detach, argmax and the like"
        raise RecipeError("loss", "has no gradient, so nothing would be trained", hint)
    return float(loss.detach()), _gradients(loss, learnt)


def _gradients(loss: "torch.Tensor", learnt: Mapping[str, "torch.Tensor"]) -> Gradients:
    wanted = {name: one for name, one in learnt.items() if one.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    return dict(zip(wanted, found, strict=True))


def _any_batch(ours: TorchProgram, count: int) -> None:
    try:
        for training in (True, False):
            ours.check(2 * count + 1, training=training)
    except TaskFormatError as error:
        reason = f"takes batches of {count} only: {error.detail}"
        raise RecipeError("forward", reason, BATCH_MEND) from error


def _a_mean(ours: TorchProgram, example: Example, once: float) -> None:
    """Refuse a sum over the batch: its steps, and what is told of losses, grow with the batch."""
    target = example.target
    inputs = [torch.cat([one, one]) for one in example.inputs]
    twice = ours.evaluate((inputs, None if target is None else torch.cat([target, target])))[1]
    if abs(once) > _SLACK and np.isclose(twice, 2 * once, rtol=1e-3):
        raise RecipeError("loss", "is a sum over the batch", "take the mean (reduction='mean')")


def _same_loss(ours: float, plain: float) -> None:
    if not np.isclose(plain, ours, rtol=1e-4, atol=1e-5):
        reason = f"gives a loss of {ours:.6g} as a graph, {plain:.6g} in Python"
        raise RecipeError("model", reason, "draw random numbers by torch in forward only")


def _same_gradients(ours: Gradients, plain: Gradients) -> None:
    """Refuse a backward pass of the author's own: a graph knows only that of its operators."""
    length = sum(float(one.norm()) ** 2 for one in plain.values() if one is not None) ** 0.5
    for name, one in plain.items():
        other = ours.get(name)
        both = [torch.zeros(()) if each is None else each for each in (one, other)]
        if not float((both[0] - both[1]).norm()) <= _SLACK * length + 1e-6:
            hint = (
                "autograd.Function cannot be exported: detach() does the same, x + (f(x) - "
                "x).detach()"
            )
            raise RecipeError(name, "has a different gradient as a graph than in Python", hint)
