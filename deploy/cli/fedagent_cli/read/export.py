"""`fedagent export`: a run's model, ledger and rounds for other tools."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from fedagent_cli import options
from fedagent_cli.command_line import Number
from fedagent_cli.errors import UsageError
from fedagent_cli.extras import need, optional
from fedagent_cli.model.models import write_model
from fedagent_cli.output import echo, emit, style_of, writing
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.rows import RoundRow, RunRow
from fedagent_protocol.errors import MICRO

from .runs import open_run

_MLFLOW_BATCH = 1000


@click.command(
    epilog=options.examples(
        "fedagent export --model model.safetensors",
        "fedagent export --model model.onnx --round 40",
        "fedagent export --ledger ledger.csv",
        "fedagent export --tensorboard runs",
        "fedagent export --mlflow mlruns",
    )
)
@click.option(
    "--model", type=options.PATH, metavar="FILE", help="A model: .safetensors, .npz or .onnx."
)
@click.option(
    "--round",
    "round_",
    type=Number(int, min=0),
    show_default="newest",
    help="Export the model after this round.",
)
@click.option("--ledger", type=options.PATH, metavar="FILE", help="Every entry, as CSV.")
@click.option(
    "--tensorboard", type=options.PATH, metavar="DIR", help="Folder for event files of TensorBoard."
)
@click.option("--mlflow", type=options.PATH, metavar="DIR", help="Folder of MLflow's file store.")
@options.coordinator_data
@options.run_id
@options.as_json
def export(
    *,
    model: Path | None,
    round_: int | None,
    ledger: Path | None,
    tensorboard: Path | None,
    mlflow: Path | None,
    data_dir: Path | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Write a run's model, ledger or rounds to files that other tools read.

    It may be read while the coordinator runs. The ledger has all runs, oldest entry first, hashes
    in hex. TensorBoard and MLflow get metrics, updates, spending and times of each round; they
    need the extra `tensorboard` or `mlflow`.
    """
    if not any((model, ledger, tensorboard, mlflow)):
        hint = "name --model FILE, --ledger FILE, --tensorboard DIR or --mlflow DIR"
        raise UsageError("no target to export to", hint)
    if tensorboard is not None:
        need("tensorboardX", "tensorboard")
    if mlflow is not None:
        need("mlflow")
    made: dict[str, object] = {}
    with open_run(Reader, data_dir, run) as (reader, chosen):
        if model is not None:
            made |= write_model(reader, chosen, model.expanduser(), round_)
        if ledger is not None:
            made |= {"ledger": str(ledger), "entries": _write_ledger(reader, ledger.expanduser())}
        if tensorboard is not None or mlflow is not None:
            with reader.whole(chosen.run_id) as whole:
                found = [row for row in whole.rounds(chosen.run_id) if row.closed_ms is not None]
            made["rounds"] = len(found)
    if tensorboard is not None:
        place = tensorboard.expanduser().absolute() / chosen.run_id[:12]
        with writing(place, what="events to ", hint="name another folder with --tensorboard"):
            to_tensorboard(place, found)
        made["tensorboard"] = str(place)
    if mlflow is not None:
        store = mlflow.expanduser().absolute()
        with writing(store, what="the run to ", hint="name another folder with --mlflow"):
            made |= {"mlflow": str(store), "mlflow_run": to_mlflow(store, chosen, found)}
    if as_json:
        emit({"run": chosen.run_id, **made})
        return
    what = {"model": f"model after round {made.get('round')}"}
    what["ledger"] = f"{made.get('entries')} entries"
    rounds = f"{made.get('rounds')} rounds of {chosen.run_id[:12]}"
    for key in ("model", "ledger", "tensorboard", "mlflow"):
        if key in made:
            echo(f"{made[key]}: {what.get(key, rounds)}")


def _write_ledger(reader: Reader, path: Path) -> int:
    style_of(path, ".csv")
    with writing(path), path.open("w", encoding="utf-8", newline="") as file:
        return sum(1 for line in reader.ledger.export() if file.write(line)) - 1


def scalars(rows: Iterable[RoundRow]) -> Iterator[tuple[str, float, int, int]]:
    """Yield name, value, round and time (ms, UTC) of every number of settled rounds."""
    spent = 0
    for row in rows:
        at = row.closed_ms or row.opened_ms
        spent += row.paid_micro + row.rent_micro
        plain = {
            "updates/ordered": row.ordered,
            "updates/in_time": row.in_time,
            "updates/used": row.used,
            "credits/paid": row.paid_micro / MICRO,
            "credits/rent": row.rent_micro / MICRO,
            "credits/spent": spent / MICRO,
            "round/seconds": row.seconds,
        }
        named = {f"model/{key}": value for key, value in row.metrics.items()}
        steps = {f"seconds/{key}": value / 1000 for key, value in row.timing_ms.items()}
        for name, value in (plain | named | steps).items():
            yield name, float(value), row.round, at


def to_tensorboard(folder: Path, rows: Iterable[RoundRow]) -> None:
    """Write event files; those of an earlier export of the run are replaced."""
    for old in folder.glob("events.out.tfevents.*"):
        old.unlink()
    with optional("tensorboardX", "tensorboardX", "tensorboard").SummaryWriter(folder) as writer:
        for name, value, round_, at in scalars(rows):
            writer.add_scalar(name, value, round_, walltime=at / 1000)


def to_mlflow(folder: Path, run: RunRow, rows: Iterable[RoundRow]) -> str:
    """Add a run to the experiment `fedagent` of a file store; return MLflow's id of it."""
    # Files need no server; MLflow wants to be asked for them.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    entities = optional("mlflow.entities", "mlflow")
    client = optional("mlflow.tracking", "mlflow").MlflowClient(tracking_uri=folder.as_uri())
    known = client.get_experiment_by_name("fedagent")
    experiment = known.experiment_id if known else client.create_experiment("fedagent")
    made = client.create_run(experiment, start_time=run.begun_ms, run_name=run.run_id[:12])
    tags = {"run": run.run_id, "recipe_digest": run.recipe_digest, "seed": str(run.seed)}
    own = [entities.RunTag(f"fedagent.{key}", value) for key, value in tags.items()]
    client.log_batch(made.info.run_id, tags=own)
    metrics = [
        entities.Metric(name, value, at, round_) for name, value, round_, at in scalars(rows)
    ]
    for begin in range(0, len(metrics), _MLFLOW_BATCH):
        client.log_batch(made.info.run_id, metrics=metrics[begin : begin + _MLFLOW_BATCH])
    status = "RUNNING" if run.ended_ms is None else "FINISHED"
    client.set_terminated(made.info.run_id, status, run.ended_ms)
    return str(made.info.run_id)
