"""A program, and a task file, out of a torch module, by torch.export: here alone it is called.

Both graphs are of the operators that eager torch calls too (its training IR), so that a program
computes what the module computes, masks of dropout and statistics of batches included.
"""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from msgspec import structs
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.export.graph_signature import InputKind

from fedagent_protocol.errors import safe_text
from fedagent_protocol.extras import how_to_add
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.recipe.spec import MAX_GRAPH_BYTES
from fedagent_task.task_file import TaskFile, task_of_program

from .codec import encode_program
from .comparing import BATCH_MEND, compared, needs_two
from .draft import Draft, link_of, rewritten
from .example import Example, example_of, quiet, unchanged
from .layers import expect_layers, watched
from .onnx_graph import onnx_graph
from .roles import Kept, kept_tensors
from .source import Loss, TaskSource
from .spec import Graph, Program

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Built:
    """A program, what its tensors begin from, and the loss of the example as scoring sees it."""

    program: Program
    tensors: Arrays
    classes: int
    loss: float


def build(source: TaskSource) -> Built:
    """Return the program of a model with its loss.

    Raises:
        RecipeError: Something of it has no form as a program; it says what, and the hint.
    """
    if not isinstance(source.model, nn.Module):
        raise RecipeError("model", "is not a torch.nn.Module", "return (model, loss, example)")
    if not hasattr(Dim, "AUTO"):
        raise RecipeError("torch", f"{torch.__version__} is too old to build", "update it to 2.6")
    expect_layers(source.model)
    example = example_of(source.example, source.model)
    whole = _Whole(source.model, source.loss, with_target=example.target is not None)
    with unchanged(whole):
        output = _tried(whole, example)
        train, evaluate = (_exported(whole, example, training=on) for on in (True, False))
    kept = kept_tensors(whole, (train, evaluate), source.local)
    program = _program(example, kept, train, evaluate)
    classes = _classes(program, output, len(source.labels), example)
    scored = compared(program, kept.values, whole, example)
    program = structs.replace(program, pairs=needs_two(program, kept.values, whole, example))
    return Built(program, kept.values, classes, scored)


class _Whole(nn.Module):  # type: ignore[misc] # torch is not there to mypy
    """Model and loss as one module that gives the output and the mean loss."""

    def __init__(self, model: nn.Module, loss: Loss, *, with_target: bool) -> None:
        super().__init__()
        self.model, self.loss, self._with_target = model, loss, with_target

    def forward(
        self, inputs: "list[torch.Tensor]", target: "torch.Tensor | None"
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Return the first tensor that the model gives, and the loss."""
        output = self.model(*inputs)
        given = [target] if self._with_target else inputs
        loss = self.loss(output, *given)
        return (output[0] if isinstance(output, tuple | list) else output), loss


def _tried(whole: _Whole, example: Example) -> "torch.Tensor":
    """Run the example as Python does: what fails there is the author's, said in torch's words."""
    whole.eval()
    try:
        with torch.no_grad(), watched(whole.model):
            output, loss = whole(list(example.inputs), example.target)
    except RecipeError:
        raise
    except Exception as error:
        name = type(error).__name__
        reason = f"does not pass through model and loss: {name}: {safe_text(error, limit=300)}"
        raise RecipeError("example", reason, "give one batch that both take") from error
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise RecipeError("loss", "is not one number for a batch", "take the mean: loss.mean()")
    if not torch.isfinite(loss):
        hint = "give a batch and initial values for which the loss is a finite number"
        raise RecipeError("loss", f"is {float(loss)} for the example", hint)
    return output


def _exported(whole: _Whole, example: Example, *, training: bool) -> ExportedProgram:
    whole.train(training)
    each = {0: Dim.AUTO}
    shapes = ([each for _ in example.inputs], None if example.target is None else each)
    try:
        with quiet():
            made = export(whole, (list(example.inputs), example.target), dynamic_shapes=shapes)
    except Exception as error:
        raise _refusal(error) from error
    for node in made.graph.nodes:
        if node.op == "placeholder" and node.name in made.graph_signature.user_inputs:
            value = node.meta["val"]
            if isinstance(value, torch.Tensor) and isinstance(value.shape[0], int):
                reason = f"takes batches of {value.shape[0]} only"
                raise RecipeError("forward", reason, BATCH_MEND)
    return made


def _refusal(error: Exception) -> RecipeError:
    text = f"{type(error).__name__}: {error}"
    if any(word in text for word in ("data-dependent", "DataDependent", "Could not guard")):
        hint = "choose by torch.where or masks instead of if, item() or a shape out of values"
        return RecipeError("forward", f"depends on the values of a tensor{_where(error)}", hint)
    first = safe_text(str(error).strip().partition("\n")[0] or type(error).__name__, limit=240)
    hint = "see docs/your-model.md for what a model may do"
    return RecipeError("forward", f"cannot be exported{_where(error)}: {first}", hint)


def _where(error: BaseException | None) -> str:
    """Return the author's line that torch was at, in words; nothing if there is none."""
    of_others = (str(Path(torch.__file__).parent), str(Path(__file__).parent))
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            if frame.filename.endswith(".py") and not frame.filename.startswith(of_others):
                return f" in {Path(frame.filename).name}, line {frame.lineno}"
        error = error.__cause__ or error.__context__
    return ""


def _program(
    example: Example, kept: Kept, train: ExportedProgram, evaluate: ExportedProgram
) -> Program:
    empty = Graph((), 0, 0)
    draft = Program(
        version=1,
        inputs=example.columns,
        target=example.label,
        tensors=kept.tensors,
        constants=kept.constants,
        train=empty,
        evaluate=empty,
    )
    given = range(draft.first_input, draft.first_constant)
    graphs = []
    for made in (train, evaluate):
        values = _values(draft, kept, made)
        graphs.append(Draft(rewritten(made), values, given, draft.first_node).drawn())
    link = link_of(graphs[1], draft.first_node)
    return structs.replace(draft, train=graphs[0], evaluate=graphs[1], link=link)


def _values(program: Program, kept: Kept, made: ExportedProgram) -> dict[str, int]:
    """Return the number of each placeholder's value."""
    values: dict[str, int] = {}
    given = program.first_input
    for spec in made.graph_signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            values[spec.arg.name] = given
            given += 1
        elif (tensor := kept.tensor_of.get(str(spec.target))) is not None:
            values[spec.arg.name] = tensor
        elif (constant := kept.constant_of.get(str(spec.target))) is not None:
            values[spec.arg.name] = program.first_constant + constant
    return values


def _classes(program: Program, output: "torch.Tensor", labels: int, example: Example) -> int:
    whole = example.label is not None and example.label.dtype == "int64"
    wide = max(2, int(output.shape[1]) if output.dim() == 2 else 2)
    if labels and whole and labels != wide:
        raise RecipeError("labels", f"are {labels} for {wide} classes", "name every class once")
    if labels or whole:
        return labels or wide
    if example.label is None:
        return 0
    binary = {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
    return 2 if binary & {node.op for node in program.evaluate.nodes} else 0


@dataclass(frozen=True, slots=True)
class Made:
    """A task, the loss of its example, and what there is to say about it."""

    task: TaskFile
    loss: float
    notes: tuple[str, ...]


def make_task(source: TaskSource, built: Built | None = None) -> Made:
    """Return the task of a model, which may be built already.

    Raises:
        RecipeError: It cannot be one; it says why, and the hint.
    """
    built = build(source) if built is None else built
    graph, lacks = _onnx(built, source)
    try:
        task = task_of_program(
            encode_program(built.program),
            built.tensors,
            classes=built.classes,
            onnx=graph,
            learner=source.learner,
            labels=tuple(source.labels),
        )
    except TaskFormatError as error:
        hint = "take a smaller model" if "limit" in error.detail else "write forward otherwise"
        raise RecipeError(error.key, error.detail, hint) from error
    notes = (f"no ONNX graph, so scoring needs torch: {lacks}",) if lacks else ()
    return Made(task, built.loss, notes)


def _onnx(built: Built, source: TaskSource) -> tuple[bytes, str]:
    """Return the graph for scoring without torch, or nothing and why there is none."""
    if find_spec("onnxscript") is None:
        return b"", f"onnxscript is missing; {how_to_add('onnx')}"
    try:
        graph = onnx_graph(source.model, built.program)
    except Exception as error:  # noqa: BLE001 - torch has no base of what its exporter raises
        return b"", safe_text(error.__cause__ or error)
    if len(graph) > MAX_GRAPH_BYTES:
        return b"", f"it would be {len(graph)} bytes, the limit is {MAX_GRAPH_BYTES}"
    return graph, ""
