"""A task file out of a module: what `fedagent task build` and the Python API do alike."""

from dataclasses import dataclass
from importlib.util import find_spec

from fedagent_protocol.errors import safe_text
from fedagent_protocol.extras import how_to_add
from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.recipe.spec import MAX_GRAPH_BYTES
from fedagent_task.task_file import TaskFile, task_of_program

from .codec import encode_program
from .export import Built, build
from .onnx_graph import onnx_graph
from .source import TaskSource


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
