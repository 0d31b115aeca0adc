"""Global models of kind graph as files: with what devices got once, and every name of a module."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from fedagent_cli.errors import MissingError
from fedagent_cli.places import MODELS
from fedagent_coordinator.run_store import GRAPHS
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.extras import how_to_add
from fedagent_protocol.tensors import decode_tensors, digest_of
from fedagent_task.client_terms import CONTROL
from fedagent_task.models import Floats
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.spec import Recipe
from fedagent_task.scoring.description import described
from fedagent_task.scoring.exported import whole


def state_of(folder: Path, recipe: Recipe, data: bytes) -> dict[str, Floats]:
    """Return a model's tensors with what devices got once, as ``load_state_dict`` takes them.

    Raises:
        MissingError: A file of the run is not what it was, or not there.
    """
    graph = Graph(recipe.model)
    # A strategy's own tensors travel beside the model's.
    tensors = {name: t for name, t in load(data).items() if not name.startswith(CONTROL)}
    try:
        tensors |= got_once(folder, graph, recipe.model.once)
        named = whole(graph, {name: t.astype(np.float32) for name, t in tensors.items()})
    except (KeyError, ProtocolError) as error:
        raise MissingError(
            f"the model does not fit the recipe ({error})", "take another"
        ) from error
    return named


def got_once(folder: Path, graph: Graph, digest: str) -> dict[str, Floats]:
    """Return what devices of a run got once, local tensors as they began; nothing without a digest.

    Raises:
        MissingError: The file is not what it was, or not there.
        ProtocolError: It does not fit the graph.
    """
    if not digest:
        return {}
    path = folder / MODELS / digest
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingError(f"cannot read {path}: {error.strerror}", "restore it") from error
    if digest_of(data) != digest:
        raise MissingError(f"{path} has changed", "restore it")
    found = decode_tensors(data, graph.once_manifest())
    return {name: tensor.astype(np.float32) for name, tensor in found.items()}


def as_onnx(folder: Path, run: str, recipe: Recipe, data: bytes, more: dict[str, str]) -> bytes:
    """Return the model as an ONNX file that takes samples as the sensors say them.

    Raises:
        MissingError: The onnx package is missing, or the task has no ONNX graph.
    """
    if find_spec("onnx") is None:
        raise MissingError("the onnx package is not installed", how_to_add("onnx"))
    try:
        body = (folder / GRAPHS / f"{run}.onnx").read_bytes()
    except OSError as error:
        hint = "export as safetensors; `fedagent task build` says why a task has no ONNX graph"
        raise MissingError("the task of the run has no ONNX graph", hint) from error
    from fedagent_coordinator.onnx_export import with_weights  # noqa: PLC0415 - an optional package

    weights = state_of(folder, recipe, data)
    link = Graph(recipe.model).program.link
    told = described(recipe.model, recipe.data, **more)
    return with_weights(body, link, weights, recipe.data, told)
