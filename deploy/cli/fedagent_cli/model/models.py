"""The global models that a run has kept: `fedagent models list`, and one of them as a file."""

from collections.abc import Mapping
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load, save

from fedagent_cli import options, places
from fedagent_cli.command_line import Group
from fedagent_cli.errors import MissingError
from fedagent_cli.model import graph_models
from fedagent_cli.output import emit, table, writing
from fedagent_cli.read.runs import columns, forbidden, open_run, recipe_of
from fedagent_coordinator.books.models import ModelRow
from fedagent_coordinator.books.reader import Reader
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.errors import ExportError
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.extras import how_to_add
from fedagent_task import models
from fedagent_task.recipe.spec import Recipe
from fedagent_task.scoring.description import described
from fedagent_task.travelling import model_tensors

app = Group(
    "models",
    help="List the models that a run has kept.",
)


@app.command("list", epilog=options.examples("fedagent models list", "fedagent models list --json"))
@options.coordinator_data
@options.run_id
@options.as_json
def models_list(*, data_dir: Path | None, run: str | None, as_json: bool) -> None:
    """List the global models that are kept: the newest ones and the best."""
    with open_run(data_dir, run) as (reader, chosen):
        found = [
            row for row in reader.models.rows(chosen.run_id) if _file(reader.folder, row.digest)
        ]
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
                row.round,
                *(row.metrics.get(one.key) for one in shown),
                "best" if row == best else "",
                row.size_bytes,
                row.digest[:16],
            )
            for row in found
        ),
    )


def write_model(reader: Reader, run: RunRow, target: Path, round_: int | None) -> dict[str, object]:
    """Write a global model for other tools, without pickle; the suffix says the format.

    Returns:
        What was written, for programs.
    """
    model, data = kept_model(reader.folder, reader.models.rows(run.run_id), round_)
    style = target.suffix.removeprefix(".") if target.suffix in (".npz", ".onnx") else "safetensors"
    recipe, more = recipe_of(run), {"round": str(model.round)}
    if recipe is not None and recipe.model.kind == "graph":
        if style == "onnx":
            content = graph_models.as_onnx(reader.folder, run.run_id, recipe, data, more)
        else:
            state = graph_models.state_of(reader.folder, recipe, data)
            content = _packed(recipe, state, style, more)
    else:
        content = _as_file(recipe, data, style, more)
    with writing(target):
        target.write_bytes(content)
    written = {"model": str(target), "format": style, "round": model.round}
    return {**written, "digest": model.digest, "metrics": dict(model.metrics)}


def kept_model(folder: Path, found: list[ModelRow], round_: int | None) -> tuple[ModelRow, bytes]:
    """Return the model after a round, the newest if None, and its bytes, which hash to its name.

    Raises:
        MissingError: It is not kept, or its file has changed.
        NoRunError: This user may not read it.
    """
    for model in found:
        path = _file(folder, model.digest)
        if path is None or round_ not in (None, model.round):
            continue
        try:
            data = path.read_bytes()
        except PermissionError as error:
            raise forbidden(path) from error
        if sha256(data).hexdigest() != model.digest:
            raise MissingError(f"{path} has changed", "restore it, or export another round")
        return model, data
    kept = [str(model.round) for model in found if _file(folder, model.digest)]
    wanted = "no model" if round_ is None else f"no model of round {round_}"
    raise MissingError(f"{wanted} is kept", f"kept are rounds: {', '.join(kept) or 'none'}")


def _file(folder: Path, digest: str) -> Path | None:
    path = folder / places.MODELS / digest
    return path if path.is_file() else None


def _as_file(recipe: Recipe | None, data: bytes, style: str, more: dict[str, str]) -> bytes:
    if style == "onnx":
        return _as_onnx(recipe, data, more)
    if recipe is None and style != "npz":
        return data
    return _packed(recipe, load(data), style, more)


def _packed(
    recipe: Recipe | None,
    tensors: Mapping[str, npt.NDArray[Any]],
    style: str,
    more: dict[str, str],
) -> bytes:
    if style == "npz":
        file = BytesIO()
        np.savez_compressed(file, **tensors)  # type: ignore[arg-type]  # stub: names are options
        return file.getvalue()
    assert recipe is not None
    return save(dict(tensors), described(recipe.model, recipe.data, **more))


def _as_onnx(recipe: Recipe | None, data: bytes, more: dict[str, str]) -> bytes:
    """Return safetensors bytes as an ONNX file that takes samples as the sensors say them.

    Raises:
        MissingError: The onnx package is missing, or the model has no ONNX form.
    """
    if recipe is None:
        raise MissingError("this version cannot read the run's recipe", "use the one that ran it")
    if find_spec("onnx") is None:
        raise MissingError("the onnx package is not installed", how_to_add("onnx"))
    from fedagent_coordinator.onnx_export import to_onnx  # noqa: PLC0415 - an optional package

    try:
        tensors = model_tensors(data, models.create(recipe.model).manifest())
        weights = {name: tensor.astype("float32") for name, tensor in tensors.items()}
        metadata = described(recipe.model, recipe.data, **more)
        return to_onnx(recipe.model, weights, recipe.data, metadata)
    except ProtocolError as error:
        raise MissingError(
            f"the model does not fit the recipe ({error})", "export it as npz"
        ) from error
    except ExportError as error:
        raise MissingError(str(error)) from error
