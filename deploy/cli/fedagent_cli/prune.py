"""`fedagent prune`: drop what old rounds saw and decided; the ledger stays whole."""

from pathlib import Path

import click

from fedagent_cli.read.runs import open_run
from fedagent_coordinator.books.archive import PIECE, Prunable, bytes_held
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.write import Books
from fedagent_node.data_dir import hold_data_dir, load_or_create

from . import options
from .command_line import Number
from .output import echo, emit, writing


@click.command(
    epilog=options.examples(
        "fedagent prune --keep-rounds 10000 --dry-run",
        "fedagent prune --keep-rounds 10000 --data-dir /srv/coordinator",
    )
)
@click.option(
    "--keep-rounds",
    type=Number(int, min=1),
    required=True,
    help="Keep this many of a run's newest rounds.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be dropped without changing anything."
)
@options.coordinator_data
@options.as_json
def prune(*, keep_rounds: int, dry_run: bool, data_dir: Path | None, as_json: bool) -> None:
    """Drop the inputs and decisions of old rounds, in every run of a stopped coordinator.

    The ledger stays whole: payments and outcomes go to archive.db. A pruned round can no
    more be replayed or asked why. A running coordinator prunes by itself: --keep-rounds.
    """
    with open_run(Reader, data_dir) as (reader, _):
        found = [reader.prunable(run.run_id, keep_rounds=keep_rounds) for run in reader.runs()]
        folder = reader.folder
    pieces = [piece for piece in found if piece.rounds]
    freed = 0 if dry_run or not pieces else _dropped(folder, pieces, keep_rounds)
    if as_json:
        runs = {piece.run_id: {"first": piece.first, "last": piece.last} for piece in pieces}
        emit({"pruned": runs, "bytes_freed": freed, "dry_run": dry_run})
        return
    for piece in pieces:
        done = "would be pruned" if dry_run else "pruned"
        echo(f"run {piece.run_id[:8]}: rounds {piece.first} to {piece.last} {done}")
    if not pieces:
        echo(
            "nothing to prune: older rounds are already dropped, or kept for the oldest policy "
            "snapshot"
        )
    elif not dry_run:
        done = "freed" if freed >= 0 else "taken in addition"
        echo(f"{abs(freed)} bytes {done}, archive.db counted")


def _dropped(folder: Path, pieces: list[Prunable], keep: int) -> int:
    """Prune, rewrite the database, and return by how much all is smaller."""
    size = bytes_held(folder)
    with (
        writing(folder),
        hold_data_dir(folder),
        Books(folder, identity=load_or_create(folder)) as store,
    ):
        for piece in pieces:
            while store.prune(piece.run_id, keep_rounds=keep, most=PIECE, by="operator").rounds:
                pass
        store.compact()
    return size - bytes_held(folder)
