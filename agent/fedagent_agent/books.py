"""The agent's SQLite file: what one device may not forget, one commit per round.

Updates until their receipt, orders that were answered, how far streams were read, what updates and
opinions have cost of the owner's privacy, and what the device thinks among neighbours, which is for
its owner alone (0600, as are SQLite's files beside it). The bytes of updates are files, which hash
to what their row says or are damaged. A commit outlives the process, but not always the power: the
log is synced when it is folded into the file, which spares the SD card the syncs of each round
(ADR 5). What costs privacy is synced before it leaves, so that no power cut makes epsilon fall.
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple
from pathlib import Path

import msgspec

from fedagent_node.data_dir import make_private, passing
from fedagent_node.errors import DiskError
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import Opinion, OpinionMode, UpdateOffer

from .core.effects import Key, OpinionAnswer, OpinionRecord, PendingUpdate, Survived
from .models import is_named
from .peers.core.records import ArmStats, StoreSlot

FILE = "books.sqlite"
MAX_BYTES = 1 << 30
MAX_UPDATES = 256
MAX_OPINIONS = 1024
"""Runs whose opinions are remembered; the one that was silent for longest is forgotten first."""
MAX_CHARGED = 10_000
"""Runs whose updates cost privacy. None is forgotten: a run that is named again starts no new
epsilon."""
MAX_SLOTS = 1000
MAX_ARMS = 8
"""Runs in which the device's standing among neighbours is kept."""
_VERSION = 7

_SCHEMA = """
CREATE TABLE updates (
  edge TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
  credit INTEGER NOT NULL, offer BLOB NOT NULL, file TEXT NOT NULL
) STRICT;
CREATE TABLE answered (
  edge TEXT PRIMARY KEY, run TEXT NOT NULL, round INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE releases (
  run TEXT PRIMARY KEY, count INTEGER NOT NULL CHECK (count >= 0)
) STRICT, WITHOUT ROWID;
CREATE TABLE opinions (
  run TEXT PRIMARY KEY, spent REAL NOT NULL, mode TEXT NOT NULL, opinion BLOB NOT NULL
) STRICT;
CREATE TABLE arms (
  run TEXT PRIMARY KEY, mean REAL, pulls INTEGER NOT NULL, slot INTEGER NOT NULL,
  chosen INTEGER NOT NULL, chosen_in INTEGER NOT NULL
) STRICT;
CREATE TABLE slots (
  run TEXT NOT NULL, slot INTEGER NOT NULL, record BLOB NOT NULL, PRIMARY KEY (run, slot)
) STRICT;
CREATE TABLE places (
  stream TEXT PRIMARY KEY, offset INTEGER NOT NULL, mark TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE numbers (name TEXT PRIMARY KEY, value REAL NOT NULL) STRICT, WITHOUT ROWID;
"""

_FORGET = (
    "DELETE FROM {table} WHERE rowid <= "
    "(SELECT rowid FROM {table} ORDER BY rowid DESC LIMIT 1 OFFSET ?)"
)

_DELETE = "DELETE FROM updates WHERE edge = ? AND run = ? AND round = ?"
_CHARGE = (
    "INSERT INTO releases VALUES (?,?) ON CONFLICT DO UPDATE SET count = max(count, excluded.count)"
)

_encoder = msgspec.msgpack.Encoder()
_offers = msgspec.msgpack.Decoder(UpdateOffer)
_opinions = msgspec.msgpack.Decoder(Opinion)


class BooksError(DiskError):
    """Raised when the agent's books cannot be opened, read or written."""

    hint: str = (
        "free space, or restore the file from a copy: without it the device forgets its updates, "
        "its place in the stream, and what updates and opinions have cost of its privacy"
    )


class Books:
    """The durable memory of one agent; whatever the disk refuses is a `BooksError`.

    Files of updates are in the folder `outbox`: `max_bytes` at most, the oldest go first.
    """

    def __init__(
        self, directory: Path, *, max_bytes: int = MAX_BYTES, checkpoint: Checkpoint = hit
    ) -> None:
        self._path = directory / FILE
        self._folder = directory / "outbox"
        self._max_bytes = max_bytes
        self._checkpoint = checkpoint
        self._held: dict[Key, tuple[UpdateOffer, str]] = {}
        """The updates that there are, oldest first, with the names of their files."""
        self._dropped: dict[Key, None] = {}
        """Rows that go with the next commit."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._refused():
            make_private(self._path)
            self._db = sqlite3.connect(self._path, isolation_level=None)
            # A commit writes whole pages, and what a round changes is short.
            sizes = "page_size = 1024", "cache_size = -512"
            for pragma in (*sizes, "journal_mode = WAL", "synchronous = NORMAL"):
                self._db.execute(f"PRAGMA {pragma}")
            (version,) = self._db.execute("PRAGMA user_version").fetchone()
            if version == 0:
                script = f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;"
                self._db.executescript(script)
            elif version != _VERSION:
                reason = f"another version of fedagent wrote it (format {version}, not {_VERSION})"
                raise BooksError(self._path, reason)
            self.boots = int(self._number("boots")) + 1
            """How often these books were opened, this time included."""
            self._set("boots", self.boots)

    def close(self) -> None:
        """Close the file. Idempotent."""
        self._db.close()

    # ---------------------------------------------------------------- updates

    def path(self, name: str) -> Path:
        """Return the path of an update's file."""
        return passing(f"{self._folder}/{name}")

    def put(
        self,
        update: PendingUpdate,
        body: Path,
        *,
        place: tuple[str, int, str] | None = None,
        releases: int = 0,
    ) -> list[Key]:
        """Keep an update in one commit; return the oldest ones, which had to make room for it.

        `body` is the file with its bytes, `place` a stream, its offset and its mark after this
        training; `releases` are updates of the run with this one, where they cost privacy.
        """
        key, offer = update.key, update.offer
        self._checkpoint("agent.books.before-put")
        with self._commit(synced=releases > 0) as db:
            db.executemany(_DELETE, [*self._dropped, key])
            row = (*key, update.credit, _encoder.encode(offer), body.name)
            db.execute("INSERT INTO updates VALUES (?,?,?,?,?,?)", row)
            db.execute("INSERT OR REPLACE INTO answered VALUES (?,?,?)", key)
            if place is not None:
                db.execute("INSERT OR REPLACE INTO places VALUES (?,?,?)", place)
            if releases:
                db.execute(_CHARGE, (key.run, releases))
                (runs,) = db.execute("SELECT count(*) FROM releases").fetchone()
                if runs > MAX_CHARGED:
                    reason = f"already has {MAX_CHARGED} runs that cost privacy"
                    raise BooksError(self._path, reason)
        self._dropped.clear()
        self._held.pop(key, None)
        self._held[key] = offer, body.name
        self._checkpoint("agent.books.put")
        expired, total = list[Key](), 0
        for count, (old, (held, _)) in enumerate(reversed(self._held.items())):
            total += held.size
            if count and (count >= MAX_UPDATES or total > self._max_bytes):
                expired.insert(0, old)
        for old in expired:
            self.drop(old)
        return expired

    def carry(self, old: Key, update: PendingUpdate) -> None:
        """Let an update answer another order."""
        key, offer = update.key, update.offer
        with self._commit() as db:
            db.execute(_DELETE, key)
            changed = db.execute(
                "UPDATE updates SET edge = ?, run = ?, round = ?, credit = ?, offer = ? "
                "WHERE edge = ? AND run = ? AND round = ?",
                (*key, update.credit, _encoder.encode(offer), *old),
            )
            if not changed.rowcount:
                raise BooksError(self._path, "the update is gone")
            db.execute("INSERT OR REPLACE INTO answered VALUES (?,?,?)", key)
        self._held[key] = offer, self._held.pop(old)[1]

    def drop(self, key: Key) -> None:
        """Forget an update: its bytes now, its row with the next commit.

        A row without bytes is none, so that this costs no commit of its own.
        """
        if (held := self._held.pop(key, None)) is not None:
            self._dropped[key] = None
            self._checkpoint("agent.books.dropped")
            with suppress(FileNotFoundError):
                os.unlink(f"{self._folder}/{held[1]}")  # noqa: PTH108 - as in `passing`

    def piece(self, run: str, number: int, digest: str, index: int, nbytes: int) -> bytes | None:
        """Return so many bytes of an update from a chunk on; None if it is gone."""
        for offer, name in self._held.values():
            if (offer.run, offer.round, offer.digest) == (run, number, digest):
                with suppress(OSError):
                    fd = os.open(f"{self._folder}/{name}", os.O_RDONLY | os.O_CLOEXEC)
                    try:
                        return os.pread(fd, nbytes, index * offer.chunk_bytes)
                    finally:
                        os.close(fd)
                break
        return None

    def survived(self) -> Survived:
        """Return what the last process left; `BooksError`: it cannot be read."""
        with self._refused():
            answered = [Key(*row) for row in self._db.execute("SELECT * FROM answered")]
            releases = dict(self._db.execute("SELECT run, count FROM releases"))
            return Survived(self.boots, self.load(), answered, self.opinions(), releases)

    def load(self) -> list[PendingUpdate]:
        """Return what has no receipt yet, oldest first; what is damaged goes, and stray files."""
        kept, self._held = [], {}
        query = "SELECT edge, run, round, credit, offer, file FROM updates ORDER BY rowid"
        for edge, run, number, credit, encoded, name in self._db.execute(query).fetchall():
            key = Key(edge, run, number)
            with suppress(msgspec.DecodeError, OSError):
                offer = _offers.decode(encoded)
                if is_named(self.path(name), offer.digest):
                    kept.append(PendingUpdate(key, offer, credit))
                    self._held[key] = offer, name
            if key not in self._held:
                self._dropped[key] = None
        files = {name for _, name in self._held.values()}
        for path in self._folder.glob("*.update*"):
            if path.name not in files:
                path.unlink()
        return kept

    def place(self, stream: str) -> tuple[int, str]:
        """Return offset and mark of a stream after the last kept training; 0 if never."""
        found = self._db.execute("SELECT offset, mark FROM places WHERE stream = ?", (stream,))
        offset, mark = found.fetchone() or (0, "")
        return int(offset), str(mark)

    # ------------------------------------------------------- what privacy costs

    def opinions(self) -> OpinionRecord:
        """Return the opinions that have cost privacy."""
        answers, spent = [], {}
        rows = self._db.execute("SELECT run, spent, mode, opinion FROM opinions ORDER BY rowid")
        for run, epsilon, mode, opinion in rows:
            try:
                answers.append(OpinionAnswer(_opinions.decode(opinion), OpinionMode(mode)))
            except (msgspec.DecodeError, ValueError) as error:
                raise BooksError(self._path, f"an opinion is damaged: {error}") from error
            spent[run] = epsilon
        return OpinionRecord(answers, spent, self._number("epsilon"))

    def keep(self, answer: OpinionAnswer, spent: float) -> None:
        """Keep an answer before it is given: a device that restarts repeats its noise."""
        opinion = answer.opinion
        row = (opinion.run, spent, str(answer.mode), _encoder.encode(opinion))
        self._checkpoint("agent.opinions.before-write")
        with self._commit(synced=True) as db:
            db.execute("INSERT OR REPLACE INTO opinions VALUES (?,?,?,?)", row)
            db.execute(_FORGET.format(table="opinions"), (MAX_OPINIONS,))
            self._set("epsilon", self._number("epsilon") + opinion.epsilon)
        self._checkpoint("agent.opinions.kept")

    # -------------------------------------------------------- among neighbours

    def begin_peers(self, now_s: int) -> int:
        """Count a start among neighbours, and sync it: of two keys of one number they refuse both.

        Its number is larger than all before; where the file was lost, if the clock is right.
        """
        with self._commit(synced=True):
            number = max(int(self._number("peers")) + 1, now_s)
            self._set("peers", number)
        return number

    def arms(self) -> dict[str, ArmStats]:
        """Return the device's arm in the newest runs, oldest first."""
        with self._refused():
            rows = self._db.execute("SELECT * FROM arms ORDER BY rowid").fetchall()
        return {run: ArmStats(*row) for run, *row in rows}

    def keep_slot(self, effect: StoreSlot) -> None:
        """Keep a slot, and the arm after it."""
        record = effect.record
        slot = record.run, record.slot, msgspec.json.encode(record)
        with self._commit() as db:
            self._set("peers", effect.incarnation)
            arm = record.run, *astuple(effect.arm)
            db.execute("INSERT OR REPLACE INTO arms VALUES (?,?,?,?,?,?)", arm)
            db.execute("INSERT OR REPLACE INTO slots VALUES (?,?,?)", slot)
            for table, most in (("arms", MAX_ARMS), ("slots", MAX_SLOTS)):
                db.execute(_FORGET.format(table=table), (most,))

    # ---------------------------------------------------------------- private

    def _number(self, name: str) -> float:
        row = self._db.execute("SELECT value FROM numbers WHERE name = ?", (name,)).fetchone()
        return float(row[0]) if row is not None else 0.0

    def _set(self, name: str, value: float) -> None:
        self._db.execute("INSERT OR REPLACE INTO numbers VALUES (?,?)", (name, value))

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Raise `BooksError` for what SQLite refuses."""
        try:
            yield
        except sqlite3.Error as error:
            raise BooksError(self._path, str(error)) from error

    @contextmanager
    def _commit(self, *, synced: bool = False) -> Iterator[sqlite3.Connection]:
        """Commit the block, or nothing of it; `synced` before it returns."""
        with self._refused():
            if synced:
                self._db.execute("PRAGMA synchronous = FULL")
            try:
                with self._db as db:
                    db.execute("BEGIN IMMEDIATE")
                    yield db
            finally:
                if synced:
                    self._db.execute("PRAGMA synchronous = NORMAL")
