"""Updates until their receipt: one SQLite file, one commit per round.

Small bodies stand in the table, big ones in files that are synced before their row. What is
receipted is deleted by the next commit: a deletion that a crash forgets only makes the agent
offer the update once more. A commit outlives the process, but not always the power: the log is
synced when it is folded into the file, which spares the SD card a sync per round (ADR 5).
"""

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from fedagent_node.data_dir import make_private, passing, write_private
from fedagent_protocol.failpoints import Checkpoint, hit
from fedagent_protocol.messages import UpdateOffer

from .core.effects import Key, PendingUpdate
from .errors import OutboxError, OutboxFormatError

INLINE_BYTES = 256 * 1024
MAX_BYTES = 1 << 30
MAX_UPDATES = 256
_VERSION = 2

_SCHEMA = """
CREATE TABLE updates (
  edge TEXT NOT NULL, run TEXT NOT NULL, round INTEGER NOT NULL,
  credit INTEGER NOT NULL, size INTEGER NOT NULL CHECK (size > 0),
  offer BLOB NOT NULL, body BLOB, file TEXT, born INTEGER NOT NULL,
  PRIMARY KEY (edge, run, round), CHECK ((body IS NULL) <> (file IS NULL))
) STRICT;
CREATE TABLE answered (
  edge TEXT PRIMARY KEY, run TEXT NOT NULL, round INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(UpdateOffer)


class Outbox:
    """The durable memory of one agent; raises `OutboxError` if it cannot be opened.

    Args:
        max_bytes: Maximum of all updates together; the oldest go first.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int = MAX_BYTES, checkpoint: Checkpoint = hit
    ) -> None:
        self._folder = folder
        self._path = folder / "outbox.sqlite"
        self._max_bytes = max_bytes
        self._checkpoint = checkpoint
        self._done: dict[Key, None] = {}
        self._updates: dict[Key, PendingUpdate] = {}
        self._bodies: dict[Key, bytes | Path] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            make_private(self._path)
            self._db = sqlite3.connect(self._path, isolation_level=None)
            self._prepare()
            self.boots = self._count_boot()
            """How often this outbox was opened, this time included."""
            self._born = self._last_born()
        except sqlite3.Error as error:
            raise OutboxError(self._path, str(error)) from error

    def path(self, name: str) -> Path:
        """Return the path of an update's file."""
        return passing(f"{self._folder}/{name}")

    def put(
        self, update: PendingUpdate, body: bytes | Path, *, offset: tuple[str, int] | None = None
    ) -> None:
        """Keep an update durably, in one commit with everything that waited for one.

        Args:
            update: Its description.
            body: Its bytes, or the synced file in this folder that holds them.
            offset: A stream and its position after this training.

        Raises:
            OutboxError: The disk refused; nothing is kept.
        """
        key = update.key
        if isinstance(body, bytes) and len(body) > INLINE_BYTES:
            body = self._write(key, body)
        self._checkpoint("agent.outbox.before-put")
        inline = body if isinstance(body, bytes) else None
        name = body.name if isinstance(body, Path) else None
        offer = _encoder.encode(update.offer)
        self._born += 1
        row = (*_ids(key), update.credit, update.offer.size, offer, inline, name, self._born)
        with self._commit():
            self._db.execute("INSERT OR REPLACE INTO updates VALUES (?,?,?,?,?,?,?,?,?)", row)
            self._db.execute("INSERT OR REPLACE INTO answered VALUES (?,?,?)", _ids(key))
            if offset is not None:
                self._set(f"offset {offset[0]}", str(offset[1]))
        self._updates[key], self._bodies[key] = update, body
        self._checkpoint("agent.outbox.after-put")

    def carry(self, old: Key, update: PendingUpdate) -> None:
        """Let an update answer another order, durably.

        Raises:
            OutboxError: The disk refused, or there is no such update.
        """
        key, offer = update.key, _encoder.encode(update.offer)
        if old not in self._bodies:
            raise OutboxError(self._path, "the update is gone")
        with self._commit():
            self._db.execute(
                "UPDATE OR REPLACE updates SET edge = ?, run = ?, round = ?, credit = ?, offer = ? "
                "WHERE edge = ? AND run = ? AND round = ?",
                (*_ids(key), update.credit, offer, *_ids(old)),
            )
            self._db.execute("INSERT OR REPLACE INTO answered VALUES (?,?,?)", _ids(key))
        del self._updates[old]
        self._updates[key], self._bodies[key] = update, self._bodies.pop(old)

    def over_limit(self) -> list[Key]:
        """Return the oldest updates that must go to respect the limits, never the newest."""
        total = sum(update.offer.size for update in self._updates.values())
        count = len(self._updates)
        over: list[Key] = []
        for key in list(self._updates)[:-1]:
            if total <= self._max_bytes and count <= MAX_UPDATES:
                break
            over.append(key)
            total, count = total - self._updates[key].offer.size, count - 1
        return over

    def drop(self, key: Key) -> None:
        """Forget an update; its row goes with the next commit."""
        body = self._bodies.pop(key, None)
        if body is None:
            return
        self._updates.pop(key, None)
        self._done[key] = None
        if isinstance(body, Path):
            body.unlink(missing_ok=True)
            self._checkpoint("agent.outbox.dropped-file")

    def flush(self) -> None:
        """Commit what waits for a commit; for times when nothing else is going on."""
        if self._done:
            with self._commit():
                pass

    def find(self, run: str, round_: int, digest: str) -> PendingUpdate | None:
        """Return the update of a round; None if it is gone."""
        rank = run, round_
        updates = self._updates.items()
        found = (update for key, update in updates if key.rank == rank)
        return next((update for update in found if update.offer.digest == digest), None)

    def read(self, key: Key, start: int, stop: int) -> bytes | None:
        """Return a piece of an update's bytes; None if it is gone."""
        body = self._bodies.get(key)
        if body is None:
            return None
        if isinstance(body, bytes):
            return body if start == 0 and stop == len(body) else body[start:stop]
        try:
            with body.open("rb", buffering=0) as file:
                return os.pread(file.fileno(), stop - start, start)
        except OSError:
            return None

    def load(self) -> list[PendingUpdate]:
        """Return everything that has no receipt yet, oldest first; damaged rows go."""
        kept = list(self._load())
        files = {body.name for body in self._bodies.values() if isinstance(body, Path)}
        for path in self._folder.glob("*.update*"):
            if path.name not in files:
                path.unlink()
        return kept

    def answered(self) -> list[Key]:
        """Return the newest order of each edge that was answered with an update."""
        rows = self._db.execute("SELECT edge, run, round FROM answered")
        return [Key(*row) for row in rows]

    def offset(self, stream: str) -> int:
        """Return where a stream was after the last kept training; 0 if never."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (f"offset {stream}",))
        found = row.fetchone()
        return int(found[0]) if found else 0

    def close(self) -> None:
        """Commit and close; what a full disk does not let us delete is offered once more."""
        with suppress(OutboxError):
            self.flush()
        self._db.close()

    def abandon(self) -> None:
        """Close without committing, as a kill would."""
        self._db.close()

    # ---------------------------------------------------------------- private

    def _prepare(self) -> None:
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute("PRAGMA cache_size = -512")
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            self._db.executescript(f"BEGIN; {_SCHEMA} PRAGMA user_version = {_VERSION}; COMMIT;")
        elif version != _VERSION:
            age = "newer" if version > _VERSION else "older"
            raise OutboxFormatError(self._path, f"was written by {age} software (format {version})")

    def _count_boot(self) -> int:
        row = self._db.execute("SELECT value FROM meta WHERE key = 'boots'").fetchone()
        boots = int(row[0]) + 1 if row else 1
        self._set("boots", str(boots))
        return boots

    def _last_born(self) -> int:
        (born,) = self._db.execute("SELECT coalesce(max(born), 0) FROM updates").fetchone()
        return int(born)

    def _set(self, key: str, value: str) -> None:
        self._db.execute("INSERT OR REPLACE INTO meta VALUES (?,?)", (key, value))

    @contextmanager
    def _commit(self) -> Iterator[None]:
        """Commit the block and the deletion of what was dropped; a refusal changes neither."""
        try:
            self._db.execute("BEGIN IMMEDIATE")
            for key in self._done:
                self._db.execute(
                    "DELETE FROM updates WHERE edge = ? AND run = ? AND round = ?", _ids(key)
                )
            yield
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise OutboxError(self._path, str(error)) from error
        self._done.clear()

    def _load(self) -> Iterator[PendingUpdate]:
        query = "SELECT edge, run, round, credit, offer, body, file FROM updates ORDER BY born"
        for edge, run, number, credit, offer, inline, name in self._db.execute(query).fetchall():
            key = Key(edge, run, number)
            body: bytes | Path = inline if name is None else self._folder / name
            try:
                update = PendingUpdate(key, _decoder.decode(offer), credit)
                size = len(body) if isinstance(body, bytes) else body.stat().st_size
            except (msgspec.DecodeError, ValueError, OSError):
                size = -1
            self._bodies[key] = body
            if size < 0 or size != update.offer.size:
                self.drop(key)
            else:
                self._updates[key] = update
                yield update

    def _write(self, key: Key, body: bytes) -> Path:
        path = self.path(key.file_name)
        try:
            write_private(path, body)
        except OSError as error:
            raise OutboxError(path, error.strerror or "cannot be written") from error
        self._checkpoint("agent.outbox.file-written")
        return path


def _ids(key: Key) -> tuple[str, str, int]:
    return key.edge, key.run, key.round
