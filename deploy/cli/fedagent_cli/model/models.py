"""The global models that a run has kept: `fedagent models list`, and one of them as a file."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from fedagent_cli import options, places
from fedagent_cli.command_line import Group
from fedagent_cli.errors import MissingError
from fedagent_cli.extras import optional
from fedagent_cli.output import emit, style_of, table, writing
from fedagent_cli.read.runs import columns, forbidden, open_run, recipe_of
from fedagent_coordinator.books.models import ModelRow
from fedagent_coordinator.books.queries import Queries
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.errors import RefusedError
from fedagent_coordinator.store import GRAPHS
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import decode_tensors, digest_of
from fedagent_task.models import Floats, create
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.text import described
from fedagent_task.scoring.exported import whole
from fedagent_task.travelling import CONTROL, model_tensors

app = Group("models", help="List the models that a run has kept.")


@app.command("list", epilog=options.examples("fedagent models list", "fedagent models list --json"))
@options.coordinator_data
@options.run_id
@options.as_json
def models_list(*, data_dir: Path | None, run: str | None, as_json: bool) -> None:
    """List the global models that are kept: the newest ones and the best."""
    with open_run(Queries, data_dir, run) as (reader, chosen):
        rows, folder = reader.models.rows(chosen.run_id), reader.folder
        found = [row for row in rows if _file(folder, row.digest).is_file()]
        shown = columns(reader.models.measures(chosen.run_id), (row.metrics for row in found))
        best = reader.models.best(chosen.run_id)
    if as_json:
        keys = ("round", "digest", "size_bytes", "metrics")
        listed = [
            {**{key: getattr(row, key) for key in keys}, "best": row == best} for row in found
        ]
        emit({"run": chosen.run_id, "models": listed})
        return
    table(
        ("round", *(one.word for one in shown), "", "bytes", "digest"),
        (
            (
                *(row.round, *(row.metrics.get(one.key) for one in shown)),
                *("best" if row == best else "", row.size_bytes, row.digest[:16]),
            )
            for row in found
        ),
    )


def write_model(
    reader: Queries, run: RunRow, target: Path, round_: int | None
) -> dict[str, object]:
    """Write a global model for other tools, without pickle; the suffix says the format.

    Returns:
        What was written, for programs.
    """
    row, data = kept_model(reader.folder, reader.models.rows(run.run_id), round_)
    recipe = readable(recipe_of(run))
    style = style_of(target, ".safetensors", ".npz", ".onnx").removeprefix(".")
    metadata = described(recipe.model, recipe.data, round=str(row.round))
    try:
        tensors = state_of(reader.folder, recipe, data)
        if style == "onnx":
            content = _as_onnx(reader.folder, run.run_id, recipe, tensors, metadata)
        else:
            content = _packed(tensors) if style == "npz" else save(dict(tensors), metadata)
    except (KeyError, ProtocolError) as error:
        reason = f"the model does not fit the recipe ({error})"
        raise MissingError(reason, "export another round") from error
    except RefusedError as error:
        raise MissingError(str(error)) from error
    with writing(target):
        target.write_bytes(content)
    written = {"model": str(target), "format": style, "round": row.round}
    return {**written, "digest": row.digest, "metrics": dict(row.metrics)}


def readable(recipe: Recipe | None) -> Recipe:
    """Return a run's recipe; `MissingError` if this version cannot read it."""
    if recipe is None:
        raise MissingError("this version cannot read the run's recipe", "use the one that ran it")
    return recipe


def kept_model(folder: Path, found: list[ModelRow], round_: int | None) -> tuple[ModelRow, bytes]:
    """Return the model after a round, the newest if None, and its bytes, which hash to its name.

    Raises:
        MissingError: It is not kept, or its file has changed.
        MissingError: This user may not read it.
    """
    kept = [model for model in found if _file(folder, model.digest).is_file()]
    for model in kept:
        if round_ in (None, model.round):
            return model, _whole(folder, model.digest)
    wanted = "no model" if round_ is None else f"no model of round {round_}"
    rounds = ", ".join(str(model.round) for model in kept)
    raise MissingError(f"{wanted} is kept", f"kept are rounds: {rounds or 'none'}")


def state_of(folder: Path, recipe: Recipe, data: bytes) -> Mapping[str, npt.NDArray[Any]]:
    """Return a model's tensors, of a graph as ``load_state_dict`` takes them.

    Raises:
        MissingError: What devices got once is not what it was, or not there.
        KeyError, ProtocolError: The model does not fit the recipe.
    """
    graph = create(recipe.model)
    if not isinstance(graph, Graph):
        return model_tensors(data, graph.manifest())
    return whole(graph, {**own_tensors(data), **got_once(folder, graph, recipe.model.once)})


def own_tensors(data: bytes) -> dict[str, Floats]:
    """Return the tensors of a kept model, without a strategy's own beside them."""
    kept = ((name, t) for name, t in load(data).items() if not name.startswith(CONTROL))
    return {name: tensor.astype(np.float32) for name, tensor in kept}


def got_once(folder: Path, graph: Graph, digest: str) -> dict[str, Floats]:
    """Return what devices of a run got once, local tensors as they began; nothing without a digest.

    Raises:
        MissingError: The file is not what it was, or not there.
        ProtocolError: It does not fit the graph.
    """
    if not digest:
        return {}
    found = decode_tensors(_whole(folder, digest), graph.once_manifest())
    return {name: tensor.astype(np.float32) for name, tensor in found.items()}


def _file(folder: Path, digest: str) -> Path:
    return folder / places.MODELS / digest


def _whole(folder: Path, digest: str) -> bytes:
    path = _file(folder, digest)
    try:
        data = path.read_bytes()
    except PermissionError as error:
        raise forbidden(path) from error
    except OSError as error:
        raise MissingError(f"cannot read {path}: {error.strerror}", "restore it") from error
    if digest_of(data) != digest:
        raise MissingError(f"{path} has changed", "restore it, or take another round")
    return data


def _packed(tensors: Mapping[str, npt.NDArray[Any]]) -> bytes:
    file = BytesIO()
    np.savez_compressed(file, **tensors)  # type: ignore[arg-type]  # stub: names are options
    return file.getvalue()


def _as_onnx(
    folder: Path,
    run: str,
    recipe: Recipe,
    tensors: Mapping[str, npt.NDArray[Any]],
    metadata: dict[str, str],
) -> bytes:
    export = optional("fedagent_coordinator.onnx_export", "onnx")
    weights = {name: tensor.astype("float32") for name, tensor in tensors.items()}
    if recipe.model.kind != "graph":
        made: bytes = export.to_onnx(recipe.model, weights, recipe.data, metadata)
        return made
    try:
        body = (folder / GRAPHS / f"{run}.onnx").read_bytes()
    except OSError as error:
        hint = "export as safetensors; `fedagent task build` says why a task has no ONNX graph"
        raise MissingError("the task of the run has no ONNX graph", hint) from error
    link = Graph(recipe.model).program.link
    filled: bytes = export.with_weights(body, link, weights, recipe.data, metadata)
    return filled
