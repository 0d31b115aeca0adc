"""`fedagent models`: the global models that a run has kept."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import options, places
from .errors import MissingError
from .output import emit, say, table

if TYPE_CHECKING:
    from fedagent_coordinator.reader import ModelRow

models_app = typer.Typer(name="models", help="List and export models.", no_args_is_help=True)
FOLDER = "models"


class Format(StrEnum):
    """Kinds of model files."""

    SAFETENSORS = "safetensors"
    NPZ = "npz"


def mount(app: typer.Typer, *, panel: str) -> None:
    """Add the group to the app."""
    app.add_typer(models_app, rich_help_panel=panel)


@models_app.command(
    "list", epilog=options.examples("fedagent models list", "fedagent models list --json")
)
def models_list(
    *,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """List the global models whose content is kept: the newest ones and the best."""
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    folder = data_dir if data_dir is not None else places.data_dir("coordinator")
    with open_run(folder, run) as (reader, chosen):
        found = [row for row in reader.models(chosen.run_id) if _file(folder, row.digest)]
    if as_json:
        listed = [
            {
                "round": row.round,
                "digest": row.digest,
                "size_bytes": row.size_bytes,
                "metrics": dict(row.metrics),
            }
            for row in found
        ]
        emit({"run": chosen.run_id, "models": listed})
        return
    table(
        ("round", "accuracy", "bytes", "digest"),
        (
            (row.round, row.metrics.get("accuracy"), row.size_bytes, row.digest[:16])
            for row in found
        ),
    )


@models_app.command(
    "export",
    epilog=options.examples(
        "fedagent models export --out model.safetensors",
        "fedagent models export --round 40 --format npz --out model.npz",
    ),
)
def models_export(
    *,
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="model.<format>")
    ] = None,
    round_: Annotated[
        int | None,
        typer.Option("--round", min=0, help="Model after this round.", show_default="newest"),
    ] = None,
    style: Annotated[
        Format | None,
        typer.Option("--format", help="File format.", show_default="by --out, or safetensors"),
    ] = None,
    data_dir: options.CoordinatorData = None,
    run: options.RunId = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a global model as a file that other tools read, without pickle."""
    from .runs import open_run  # noqa: PLC0415 - heavy imports

    folder = data_dir if data_dir is not None else places.data_dir("coordinator")
    with open_run(folder, run) as (reader, chosen):
        found = reader.models(chosen.run_id)
    model, data = _content(folder, found, round_)
    if style is None:
        style = Format.NPZ if out is not None and out.suffix == ".npz" else Format.SAFETENSORS
    target = out if out is not None else Path(f"model.{style}")
    _write(target, data, style)
    if as_json:
        emit(
            {
                "out": str(target),
                "format": style.value,
                "round": model.round,
                "digest": model.digest,
                "metrics": dict(model.metrics),
            }
        )
    else:
        say(f"{target}: model after round {model.round}, {len(data)} bytes of tensors")


def _content(folder: Path, found: "list[ModelRow]", round_: int | None) -> "tuple[ModelRow, bytes]":
    """Return the wanted model and its bytes, which hash to its name.

    Raises:
        MissingError: It is not kept, or its file has changed.
    """
    from hashlib import sha256  # noqa: PLC0415 - only here

    for model in found:
        path = _file(folder, model.digest)
        if path is None or round_ not in (None, model.round):
            continue
        data = path.read_bytes()
        if sha256(data).hexdigest() != model.digest:
            raise MissingError(f"{path} has changed", "restore it, or export another round")
        return model, data
    kept = [str(model.round) for model in found if _file(folder, model.digest)]
    wanted = "no model" if round_ is None else f"no model of round {round_}"
    raise MissingError(f"{wanted} is kept", f"kept are rounds: {', '.join(kept) or 'none'}")


def _file(folder: Path, digest: str) -> Path | None:
    """Return the file of a model, None if its content is not kept."""
    path = folder.expanduser() / FOLDER / digest
    return path if path.is_file() else None


def _write(target: Path, data: bytes, style: Format) -> None:
    """Write safetensors bytes in the wanted format."""
    if style is Format.SAFETENSORS:
        target.write_bytes(data)
        return
    import numpy as np  # noqa: PLC0415 - only here
    from safetensors.numpy import load  # noqa: PLC0415

    with target.open("wb") as file:
        np.savez_compressed(file, **load(data))  # type: ignore[arg-type]  # stub: names are options
