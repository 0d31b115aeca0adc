"""What the books of a run say, as columns."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from fedagent_cli.read.runs import open_run
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.schema import DATABASE
from fedagent_coordinator.picture.summary import summarize
from fedagent_protocol.errors import MICRO

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_MICRO_KEYS = {"amount_micro", "paid_micro", "price_micro", "rent_micro"}
_NESTED = ("timing_ms", "metrics", "notes", "prev_hash", "hash")


class HasData(Protocol):
    """A run that knows where its books are."""

    @property
    def data_dir(self) -> Path:
        """Data directory of its coordinator."""


Source = HasData | str | os.PathLike[str] | None
"""A run, its folder or its coordinator's data directory; None: the coordinator's of this user."""


Columns = dict[str, list[object]]
"""Lists of one length by name, a row being one round, device, order or entry."""


@dataclass(frozen=True, slots=True)
class RunData:
    """One run: amounts are in credits, times in seconds; None is what is not known.

    Attributes:
        run: Its id.
        summary: The run in one record, as `fedagent status --json` has it.
        rounds: A row a round: who was ordered, what it cost, every metric that was measured.
        devices: A row a device, over the whole run.
        orders: A row a round and device that was ordered: how it ended, and how long it took.
        ledger: A row an entry of the books, oldest first.
    """

    run: str
    summary: dict[str, object]
    rounds: Columns
    devices: Columns
    orders: Columns
    ledger: Columns


def read(run: Source = None, *, run_id: str | None = None) -> RunData:
    """Read a run, while it goes on or later.

    Args:
        run: What `run_local` returned, or a folder: its own, or a coordinator's data directory;
            none for the coordinator of this user.
        run_id: Which run of that directory, by the start of its id; none for the newest.

    Raises:
        MissingError: There is none.
        CliError: Its database is damaged, or of another version.
    """
    with (
        open_run(Reader, folder_of(run), run_id) as (now, found),
        now.whole(found.run_id) as reader,
    ):
        return RunData(
            run=found.run_id,
            summary=summarize(reader, found).record(),
            rounds=_rounds(reader, found.run_id),
            devices=columns(reader.devices(found.run_id)),
            orders=columns(reader.outcomes(found.run_id)),
            ledger=_ledger(reader, found.run_id),
        )


def folder_of(run: Source) -> Path | None:
    """Return the data directory that is meant; None for this user's own."""
    if run is None:
        return None
    if not isinstance(run, str | os.PathLike):
        return run.data_dir
    folder = Path(run).expanduser()
    inside = folder / "coordinator"
    return inside if (inside / DATABASE).is_file() else folder


def columns(rows: "Sequence[DataclassInstance]") -> Columns:
    """Return records as columns, micro-credits as credits."""
    return _columns(_flat(asdict(row)) for row in rows)


def _rounds(reader: Reader, run_id: str) -> Columns:
    return _columns(
        {
            **_flat(asdict(row)),
            "seconds": row.seconds,
            **{f"{name}_s": value / 1000 for name, value in row.timing_ms.items()},
            **row.metrics,
        }
        for row in reader.rounds(run_id)
    )


def _ledger(reader: Reader, run_id: str) -> Columns:
    entries = reversed(reader.ledger.show(run_id, limit=-1))
    return _columns({**_flat(asdict(one)), "hash": one.hash.hex()} for one in entries)


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    plain = {name: value for name, value in row.items() if name not in _NESTED}
    for name in _MICRO_KEYS & plain.keys():
        value = plain.pop(name)
        plain[name.removesuffix("_micro")] = value / MICRO if isinstance(value, int) else None
    return plain


def _columns(rows: Iterable[Mapping[str, object]]) -> Columns:
    listed = list(rows)
    names = dict.fromkeys(name for row in listed for name in row)
    return {name: [row.get(name) for row in listed] for name in names}
