"""Who belongs to the site: invitations, devices that wait, members and their certificates.

A database of its own (``site.db``, 0600): the join service and the command line both write it.
"""

import hashlib
import sqlite3
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from fedagent_coordinator.books.schema import one_line
from fedagent_coordinator.errors import RefusedError, StoreDamagedError
from fedagent_node.data_dir import make_private
from fedagent_node.site.certificates import Certificate, RevocationList, Role
from fedagent_node.site.joining import JoinRequest, Refusal, code_of, read_code
from fedagent_protocol.bucket import TokenBucket
from fedagent_protocol.errors import safe_text
from fedagent_protocol.signed import identity_of

DATABASE = "site.db"
INVITATION_S = 86_400.0
KEPT_S = 30 * 86_400.0
"""How long an invitation is kept after its end, so that we can say what became of it."""
MAX_INVITATIONS = 10_000
MAX_MEMBERS = 20_000
KEPT_CERTIFICATES = 4
"""Of one member, although they look ended: twice as many as are valid at the same time."""
MAX_PENDING = 64
TURNS_PER_S = 1.0
"""How often one of those gives way where its address has no more than the newcomer's."""
PENDING_S = 300.0
"""A device that has not asked for so long does not wait any more."""
LISTS_SKIPPED = 1_000_000
"""Lists of the revoked that edges may have and a restored coordinator may not."""
UNKNOWN = "unknown"
"""The role of somebody who was revoked and is known by the id alone."""
_BUSY_S = 5.0
_SCHEMA = 4
_TABLES = """
CREATE TABLE invitations (
    secret_hash BLOB PRIMARY KEY, name TEXT NOT NULL, role TEXT NOT NULL,
    created_s REAL NOT NULL, expires_s REAL NOT NULL, used_by TEXT
) STRICT;
CREATE TABLE members (
    id TEXT PRIMARY KEY, role TEXT NOT NULL, name TEXT NOT NULL, state TEXT NOT NULL
        CHECK (state IN ('pending', 'accepted', 'joined', 'revoked')),
    code TEXT NOT NULL, address TEXT NOT NULL, software TEXT NOT NULL,
    since_s REAL NOT NULL, asked_s REAL NOT NULL, ahead_s REAL NOT NULL
) STRICT;
CREATE TABLE certificates (
    -- Without an id it is revoked, and nobody here knows whose it was.
    serial TEXT PRIMARY KEY, id TEXT, der BLOB NOT NULL, not_after_s REAL NOT NULL
) STRICT;
CREATE INDEX certificates_of ON certificates (id);
CREATE TABLE facts (name TEXT PRIMARY KEY, value ANY) STRICT;
"""

State = Literal["pending", "accepted", "joined", "revoked"]


@dataclass(frozen=True, slots=True)
class Member:
    """One that belongs to the site, waits to, or does no more; times in seconds since 1970.

    By `ahead_s` its clock was ahead of ours when it asked last.
    """

    id: str
    role: str
    name: str
    state: State
    code: str
    address: str
    software: str
    since_s: float
    asked_s: float
    ahead_s: float
    not_after_s: float | None = None


@dataclass(frozen=True, slots=True)
class OpenInvitation:
    """An invitation that was not used yet."""

    name: str
    role: str
    expires_s: float


Decision = Literal["grant", "wait", "waiting"] | Refusal
"""``wait`` begins to show a code, ``waiting`` goes on."""


class Enrolment:
    """The open database, made if need be."""

    def __init__(self, data_dir: Path) -> None:
        self.path = data_dir / DATABASE
        self._turns = TokenBucket(1.0, TURNS_PER_S)
        make_private(self.path)
        self._connection = sqlite3.connect(self.path, timeout=_BUSY_S, isolation_level=None)
        try:
            self._connection.execute("PRAGMA synchronous = FULL")
            with self._writing():
                version = self._one("PRAGMA user_version")[0]
                if version == 0:
                    for statement in _TABLES.strip().split(";\n"):
                        self._connection.execute(statement)
                    self._connection.execute(f"PRAGMA user_version = {_SCHEMA}")
        except sqlite3.DatabaseError as exc:
            self._connection.close()
            raise StoreDamagedError(str(self.path), one_line(exc)) from exc
        if version not in (0, _SCHEMA):
            self._connection.close()
            raise StoreDamagedError(str(self.path), "was written by another version")

    def close(self) -> None:
        """Close it."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self._connection:
            self._connection.execute("BEGIN IMMEDIATE")
            yield

    def _one(self, query: str, *values: object) -> tuple[Any, ...]:  # columns of our own
        row: tuple[Any, ...] | None = self._connection.execute(query, values).fetchone()
        return row if row is not None else ()

    # ------------------------------------------------------------------- people

    def invite(self, name: str, role: str, secret: bytes, *, now: float) -> float:
        """Keep an invitation; return when it expires.

        Raises:
            RefusedError: There are too many.
        """
        expires = now + INVITATION_S
        with self._writing():
            self._connection.execute("DELETE FROM invitations WHERE expires_s < ?", (now - KEPT_S,))
            if self._count("invitations") >= MAX_INVITATIONS:
                raise RefusedError("there are too many invitations", "wait until some expire")
            self._connection.execute(
                "INSERT INTO invitations VALUES (?, ?, ?, ?, ?, NULL)",
                (_hashed(secret), name, role, now, expires),
            )
        return expires

    def invitations(self, *, now: float) -> list[OpenInvitation]:
        """Return who was invited and has not come yet."""
        rows = self._connection.execute(
            "SELECT name, role, expires_s FROM invitations "
            "WHERE used_by IS NULL AND expires_s > ? ORDER BY created_s",
            (now,),
        )
        return [OpenInvitation(*row) for row in rows]

    def members(self, *, now: float) -> list[Member]:
        """Return everybody, those who wait first; who gave up waiting is left out."""
        rows = self._connection.execute(
            "SELECT id, role, name, state, code, address, software, since_s, asked_s, ahead_s, "
            "(SELECT max(not_after_s) FROM certificates WHERE certificates.id = members.id) "
            "FROM members WHERE state != 'pending' OR asked_s > ? "
            "ORDER BY state != 'pending', role, name, id",
            (now - PENDING_S,),
        )
        return [Member(*row) for row in rows]

    def accept(self, code: str, ident: str, *, now: float) -> None:
        """Let in one that waits, if it still shows that code.

        Raises:
            RefusedError: It shows another one now, or waits no more.
        """
        with self._writing():
            changed = self._connection.execute(
                "UPDATE members SET state = 'accepted', since_s = ? "
                "WHERE id = ? AND state = 'pending' AND code = ? AND asked_s > ?",
                (now, ident, read_code(code), now - PENDING_S),
            ).rowcount
        if not changed:
            problem = "it waits no more, or shows another code now"
            raise RefusedError(problem, "see `fedagent devices`")

    def revoke(self, ident: str, *, now: float) -> None:
        """Take back all certificates of a member, for good; also of one that is not known here."""
        with self._writing():
            self._put_out({ident}, now)
            self._next_list()

    def _put_out(self, ids: Collection[str], now: float) -> None:
        self._connection.executemany(
            "INSERT INTO members VALUES (?, ?, '', 'revoked', '', '', '', ?, ?, 0) "
            "ON CONFLICT (id) DO UPDATE SET state = 'revoked', since_s = excluded.since_s",
            [(ident, UNKNOWN, now, now) for ident in ids],
        )

    def _next_list(self, step: int = 1, least: int = 0) -> None:
        self._set("revocations", max(self._newest_list(), least) + step)

    def learn(self, found: RevocationList, *, now: float) -> int:
        """Take over a list that the site's authority made; return how much of it is new here."""
        with self._writing():
            listed = {f"{serial:x}" for serial in found.serials}
            query = "SELECT serial, id FROM certificates WHERE serial = ?"
            known: dict[str, str] = dict(filter(None, (self._one(query, one) for one in listed)))
            self._connection.executemany(
                "INSERT INTO certificates VALUES (?, NULL, x'', 0)",
                [(serial,) for serial in listed - known.keys()],
            )
            ids = (found.ids | set(filter(None, known.values()))) - self.revoked().ids
            self._put_out(ids, now)
            fresh = len(listed - known.keys()) + len(ids)
            if fresh or found.number >= self._newest_list():
                self._next_list(least=found.number)
        return fresh

    def skip_lists(self) -> None:
        """Give the next list of the revoked a number that no edge has seen, after a restore."""
        self._next_list(LISTS_SKIPPED)

    def admit(self, public: bytes, role: Role, name: str, *, now: float) -> None:
        """Let in a key that a person brought here.

        Raises:
            RefusedError: It was revoked, or is another's.
        """
        ident = identity_of(public)
        with self._writing():
            found = self._one("SELECT state, role FROM members WHERE id = ?", ident)
            state, known = found or ("", role)
            if state == "revoked":
                raise RefusedError("its key was revoked", "remove it: a new one is made")
            if known != role:
                raise RefusedError(f"its key is that of an {known}", "take another folder")
            self._connection.execute(
                "INSERT INTO members VALUES (?, ?, ?, 'joined', '', '', '', ?, ?, 0) "
                "ON CONFLICT (id) DO UPDATE SET name = excluded.name, asked_s = excluded.asked_s",
                (ident, role, name, now, now),
            )

    # -------------------------------------------------------- the join service

    def decide(self, request: JoinRequest, address: str, ca_der: bytes, *, now: float) -> Decision:
        """Return what becomes of a request whose signature holds, and keep what follows from it."""
        with self._writing():
            ident = identity_of(request.public)
            found = self._one("SELECT state, role, name FROM members WHERE id = ?", ident)
            state, role, name = found or ("", request.role, "")
            belongs = state in ("accepted", "joined")
            if state == "revoked":
                return "revoked"
            if role != request.role and state != "pending":
                return "wrong_role"
            if not belongs:
                name = request.name
            if request.secret:
                # Also of one that is known: what was used lies open nowhere.
                refused, invited = self._redeem(request, ident, now)
                if refused and not belongs:
                    return refused
                name = name if state == "joined" else invited or name
            elif not belongs:
                return self._wait(request, ident, address, ca_der, now)
            if not state and self._count("members") >= MAX_MEMBERS:
                return "too_many_pending"
            self._keep(request, "joined", name, "", address, now)
            return "grant"

    def _redeem(self, request: JoinRequest, ident: str, now: float) -> tuple[Refusal | None, str]:
        wanted = _hashed(request.secret)
        row = self._one("SELECT * FROM invitations WHERE secret_hash = ?", wanted)
        if not row:
            return "unknown_invitation", ""
        _, name, role, _, expires, used_by = row
        if role != request.role:
            return "wrong_role", ""
        if used_by is not None:
            return (None, name) if used_by == ident else ("used_invitation", "")
        if now >= expires:
            return "expired_invitation", ""
        self._connection.execute(
            "UPDATE invitations SET used_by = ? WHERE secret_hash = ?", (ident, wanted)
        )
        return None, name

    def _wait(
        self, request: JoinRequest, ident: str, address: str, ca_der: bytes, now: float
    ) -> Decision:
        self._connection.execute(
            "DELETE FROM members WHERE state = 'pending' AND asked_s <= ?", (now - PENDING_S,)
        )
        if self._connection.execute(
            "UPDATE members SET asked_s = ? WHERE id = ? AND role = ?", (now, ident, request.role)
        ).rowcount:
            return "waiting"
        if self._count("members WHERE state = 'pending'") >= MAX_PENDING:
            # Who has waited longest, of the address that has most.
            first, most, here = self._one(
                "SELECT id, count(*) OVER (PARTITION BY address) AS most, sum(address = ?) OVER () "
                "FROM members WHERE state = 'pending' ORDER BY most DESC, since_s, rowid",
                address,
            )
            if here + 1 >= most and not self._turns.take(now):
                return "too_many_pending"
            self._connection.execute("DELETE FROM members WHERE id = ?", (first,))
        code = code_of(ca_der, request.public)
        self._keep(request, "pending", request.name, code, address, now)
        return "wait"

    def _keep(
        self, request: JoinRequest, state: State, name: str, code: str, address: str, now: float
    ) -> None:
        self._connection.execute(
            "INSERT INTO members VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO UPDATE "
            "SET role = excluded.role, name = excluded.name, "
            "since_s = iif(state = excluded.state, since_s, excluded.since_s), "
            "state = excluded.state, code = excluded.code, "
            "address = excluded.address, software = excluded.software, "
            "asked_s = excluded.asked_s, ahead_s = excluded.ahead_s",
            (
                *(identity_of(request.public), request.role, safe_text(name, limit=64)),
                *(state, code, address, safe_text(request.software, limit=64)),
                *(now, now, request.now_s - now),
            ),
        )

    def name_of(self, ident: str) -> str:
        """Return the name of a member."""
        return str((self._one("SELECT name FROM members WHERE id = ?", ident) or ("",))[0])

    # ------------------------------------------------- certificates and their end

    def certificate_of(self, ident: str) -> bytes | None:
        """Return the newest certificate of somebody, DER: none ends before an older one."""
        row = self._one(
            "SELECT der FROM certificates WHERE id = ? ORDER BY not_after_s DESC, rowid DESC",
            ident,
        )
        return bytes(row[0]) if row else None

    def issued(self, certificate: Certificate, *, now: float) -> None:
        """Keep what was issued; of the revoked for good, of others the newest in any case."""
        with self._writing():
            self._connection.execute(
                "INSERT INTO certificates VALUES (?, ?, ?, ?)",
                (f"{certificate.serial:x}", certificate.id, certificate.der, certificate.not_after),
            )
            # A clock that is ahead for an hour must not let the revoked in again, nor forget the
            # number of a certificate that is revoked after it was set right.
            self._connection.execute(
                "DELETE FROM certificates AS old WHERE not_after_s < ? "
                "AND id NOT IN (SELECT id FROM members WHERE state = 'revoked') AND ? <= "
                "(SELECT count(*) FROM certificates WHERE id = old.id AND rowid > old.rowid)",
                (now, KEPT_CERTIFICATES),
            )

    def asked_s(self) -> float:
        """Return when somebody asked last to join or to go on, in seconds since 1970."""
        return float(self._one("SELECT coalesce(max(asked_s), 0) FROM members")[0])

    def revoked(self) -> RevocationList:
        """Return the newest list of the revoked: who was, ever."""
        number = self._newest_list()  # first: who is revoked meanwhile makes a newer one
        serials = self._column(
            "serial FROM certificates LEFT JOIN members USING (id) "
            "WHERE certificates.id IS NULL OR state = 'revoked'"
        )
        ids = self._column("id FROM members WHERE state = 'revoked'")
        return RevocationList(number, frozenset(int(one, 16) for one in serials), ids)

    def agents(self) -> frozenset[str]:
        """Return which agents belong to the site."""
        return self._column(
            "id FROM members WHERE role = 'agent' AND state IN ('accepted', 'joined')"
        )

    def _column(self, what: str) -> frozenset[str]:
        return frozenset(one for (one,) in self._connection.execute(f"SELECT {what}"))

    def names(self) -> dict[str, str]:
        """Return what everybody is called that was ever let in."""
        return dict(
            self._connection.execute("SELECT id, name FROM members WHERE state != 'pending'")
        )

    def changes(self) -> int:
        """Return a number that is another one after anybody else has written."""
        return int(self._one("PRAGMA data_version")[0])

    # -------------------------------------------------------------------- facts

    def _newest_list(self) -> int:
        found = self._one("SELECT value FROM facts WHERE name = 'revocations'")
        return int(found[0]) if found else 0

    def places(self) -> tuple[str, ...]:
        """Return where the join service was reached when it ran last."""
        found = self._one("SELECT value FROM facts WHERE name = 'places'")
        return tuple(str(found[0]).split()) if found else ()

    def serves_at(self, places: tuple[str, ...]) -> None:
        """Keep where the join service is reached."""
        with self._writing():
            self._set("places", " ".join(places))

    def _set(self, name: str, value: int | str) -> None:
        self._connection.execute("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))

    def _count(self, table: str) -> int:
        return int(str(self._one(f"SELECT count(*) FROM {table}")[0]))  # noqa: S608 - our own words


def members_in(folder: Path, now: float) -> list[Member]:
    """Return everybody of the site that a folder keeps; nobody where it keeps none.

    Raises:
        StoreDamagedError, sqlite3.Error, OSError: It cannot be read.
    """
    if not (folder / DATABASE).exists():
        return []
    with Enrolment(folder) as found:
        return found.members(now=now)


def _hashed(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()
