"""What a device brings to the selection among neighbours: its keys and its memory.

The memory is one SQLite file: the agent's arm by run, and the newest slots. Nothing of it is
ever sent or logged; it is for the owner alone (0600, as are SQLite's files beside it, which
take its mode).
"""

import os
import random
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple
from pathlib import Path

import msgspec

from fedagent_agent.books import DiskError
from fedagent_node.data_dir import Identity, make_private

from .core.records import ArmStats, SlotRecord, StoreSlot
from .core.selection import PeerAccess
from .core.transport import PeerTransport
from .seal import PeerSeal

FILE = "peers.sqlite"
KEPT_SLOTS = 1000
KEPT_RUNS = 8
_VERSION = 2

_SCHEMA = """
CREATE TABLE standings (
  run TEXT PRIMARY KEY, mean REAL, pulls INTEGER NOT NULL, slot INTEGER NOT NULL,
  born INTEGER NOT NULL, chosen INTEGER NOT NULL, chosen_in INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE slots (
  number INTEGER PRIMARY KEY, run TEXT NOT NULL, slot INTEGER NOT NULL, record TEXT NOT NULL,
  UNIQUE (run, slot)
) STRICT;
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""


class PeerStoreError(DiskError):
    """Raised when what a device keeps of democratized analytics cannot be used."""

    hint = "free space, or move the file away to start empty"


class PeerStore:
    """The durable memory of one agent among its neighbours.

    Args:
        clock: Seconds since 1970; where a new file begins to count starts.

    Attributes:
        incarnation: Larger than any incarnation before; durable, also over a power cut.
        epoch: Number of this start for neighbours, likewise; larger than those of a file that was
            lost, if the clock is right: else they would refuse the new one's card.

    Raises:
        PeerStoreError: The file cannot be used.
    """

    def __init__(self, directory: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = directory / FILE
        with _reported(self._path):
            # SQLite would make it readable by others.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            make_private(self._path)
            self._db = sqlite3.connect(self._path, isolation_level=None)
            try:
                self._prepare()
                self.incarnation, self.epoch = self._begin_incarnation(max(1, int(clock())))
            except BaseException:
                self._db.close()
                raise

    def arms(self) -> dict[str, ArmStats]:
        """Return the agent's arm in the newest runs, oldest first; may raise `PeerStoreError`."""
        with _reported(self._path):
            rows = self._db.execute(
                "SELECT run, mean, pulls, slot, chosen, chosen_in FROM standings ORDER BY born"
            )
            return {run: ArmStats(*row) for run, *row in rows.fetchall()}

    def keep(self, effect: StoreSlot) -> None:
        """Keep a slot and the arm after it, in one commit; after a `PeerStoreError` neither."""
        arm, record = effect.arm, effect.record
        with _reported(self._path), self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._set("life", effect.incarnation)
            self._db.execute(
                "INSERT OR REPLACE INTO standings (run, mean, pulls, slot, chosen, chosen_in, born)"
                " SELECT ?,?,?,?,?,?, coalesce(max(born), 0) + 1 FROM standings",
                (record.run, *astuple(arm)),
            )
            self._db.execute(
                "INSERT INTO slots (run, slot, record) VALUES (?,?,?)"
                " ON CONFLICT (run, slot) DO UPDATE SET record = excluded.record",
                (record.run, record.slot, msgspec.json.encode(record).decode()),
            )
            self._forget()

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _forget(self) -> None:
        self._db.execute(
            "DELETE FROM slots WHERE number <= (SELECT number FROM slots"
            " ORDER BY number DESC LIMIT 1 OFFSET ?)",
            (KEPT_SLOTS,),
        )
        self._db.execute(
            "DELETE FROM standings WHERE born <= (SELECT born FROM standings"
            " ORDER BY born DESC LIMIT 1 OFFSET ?)",
            (KEPT_RUNS,),
        )

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA cache_size = -256")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            raise PeerStoreError(self._path, f"was written by another version (format {version})")

    def _begin_incarnation(self, first: int) -> tuple[int, int]:
        """Count a start and sync it: of two keys with one number neighbours would refuse both."""
        self._db.execute("PRAGMA synchronous = FULL")
        known = dict(self._db.execute("SELECT key, value FROM meta").fetchall())
        incarnation, epoch = known.get("life", 0) + 1, known.get("epoch", first - 1) + 1
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._set("life", incarnation)
            self._set("epoch", epoch)
        # From here on a commit outlives the process, not the power: it spares the card.
        self._db.execute("PRAGMA synchronous = NORMAL")
        return incarnation, epoch

    def _set(self, key: str, value: int) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (key, value))


def read_slots(directory: Path, *, run: str = "", last: int = KEPT_SLOTS) -> list[SlotRecord]:
    """Return the newest slots that a device keeps, oldest first; of runs that begin with `run`.

    Raises:
        PeerStoreError: There is no such file, or it cannot be read.
    """
    path = directory / FILE
    with (
        _reported(path),
        closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as db,
    ):
        rows = db.execute(
            "SELECT record FROM slots WHERE substr(run, 1, ?) = ? ORDER BY number DESC LIMIT ?",
            (len(run), run, last),
        ).fetchall()
        return [msgspec.json.decode(text, type=SlotRecord) for (text,) in reversed(rows)]


@contextmanager
def _reported(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.Error, msgspec.DecodeError) as error:
        raise PeerStoreError(path, str(error)) from error


class PeerDevice:
    """Opens keys and memory when neighbours are first needed, and keeps slots.

    Args:
        identity: Signs the card; None: there are no neighbours.
        declared: Neighbours that the owner names, and how far they are in kilometres.
    """

    def __init__(
        self,
        directory: Path,
        identity: Identity | None,
        declared: Mapping[str, float],
        *,
        seed: int,
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._declared = declared
        self._seed = seed
        self._store: PeerStore | None = None

    def open(self, counters: Counter[str]) -> PeerAccess | str:
        """Open keys and memory; return why that is impossible."""
        identity = self._identity
        if identity is None:
            return "no identity to seal envelopes with"
        try:
            self._store = store = PeerStore(self._directory)
            arms = store.arms()
        except PeerStoreError as error:
            return str(error)
        declared = {peer: far for peer, far in self._declared.items() if peer != identity.id}
        seal = PeerSeal(identity, store.epoch, reserved=frozenset(declared))
        return PeerAccess(
            me=identity.id,
            incarnation=store.incarnation,
            transport=PeerTransport(seal, counters),
            rng=random.Random(f"{self._seed}/{store.incarnation}"),  # noqa: S311 - no secret
            arms=arms,
            declared=declared,
        )

    def keep(self, effect: StoreSlot) -> None:
        """Keep what only the owner may see; a `PeerStoreError` costs the slot's memory alone."""
        if self._store is not None:
            self._store.keep(effect)

    def close(self) -> None:
        """Close what is open."""
        if self._store is not None:
            self._store.close()
