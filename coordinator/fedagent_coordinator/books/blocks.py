"""Whether a database's files are what their writer left, told without reading a row.

Beside the database stand the SHA-256 of each of its blocks and a signature over all of them, as
of the last time that its WAL was folded into it; the high-water mark names the WAL's last frame.
Where both still fit, everything was checked when it was written, and a start need not walk a
million entries. Where they do not (a power cut, an editor, a flipped bit), the ledger is verified
row by row: the file is a short cut, no proof, and is therefore not synced.

A database that grew for a year is not read whole for that: while the file system says that nobody
has written it since, a start hashes some of the blocks, others than the last start did.
"""

import hashlib
import os
import struct
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import msgspec

from fedagent_node.data_dir import write_private

BLOCKS = "coordinator.blocks"
BLOCK_BYTES = 65_536
_HEAD_BYTES = 512
_DIGEST_BYTES = 32
_AT_START = 4096
"""Blocks that a start hashes of a file that nobody has written; all of them if there are fewer."""
_SIDE_BY_SIDE = 256
"""Fewer blocks are not worth another thread."""
_PURPOSE = b"fedagent/ledger-blocks/2\0"
_FRAME = struct.Struct(">II8s8s")
_WAL_HEADER = 32

Sign = Callable[[bytes], bytes]
Check = Callable[[bytes, bytes], bool]


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    commits: int  # transactions that are in the file
    size: int
    signature: bytes
    written: str = ""  # as `_written` has it
    next: int = 0  # the block that the next start begins at


class WalFrames:
    """Follows what is appended to a WAL: its last frame, and the pages that it has."""

    def __init__(self, database: Path) -> None:
        self._path = database.with_name(f"{database.name}-wal")
        self.pages: set[int] = set()
        self.page_bytes = 4096
        self._salt = b""
        self._at, self.last = _WAL_HEADER, ""
        self.advance()

    def advance(self) -> None:
        """Read what is new."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._begin(b"")
            return
        try:
            header = os.pread(fd, _WAL_HEADER, 0)
            if header[16:24] != self._salt:
                self._begin(header[16:24])
            if len(header) == _WAL_HEADER:
                self.page_bytes = int.from_bytes(header[8:12]) or self.page_bytes
                self._read(fd)
        finally:
            os.close(fd)

    def folded(self) -> None:
        """Forget the pages, once their blocks are hashed and the WAL is empty."""
        self.advance()
        if not self.last:
            self.pages.clear()

    def _begin(self, salt: bytes) -> None:
        self._salt, self._at, self.last = salt, _WAL_HEADER, ""

    def _read(self, fd: int) -> None:
        while True:
            frame = os.pread(fd, _FRAME.size, self._at)
            if len(frame) < _FRAME.size:
                return
            page, _, salt, checksum = _FRAME.unpack(frame)
            if salt != self._salt:
                return
            self.pages.add(page)
            self.last = f"{salt.hex()}{checksum.hex()}"
            self._at += _FRAME.size + self.page_bytes


class BlockDigests:
    """The digests of a database's blocks, kept by the one coordinator that writes it."""

    def __init__(self, database: Path, sign: Sign | None) -> None:
        self._database, self._sign = database, sign
        self._path = database.with_name(BLOCKS)
        self._digests = bytearray()
        self._next = 0
        self._fd: int | None = None

    def close(self) -> None:
        """Close the file, after the connection: before, that would drop SQLite's locks on it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def read(self, check: Check | None) -> int | None:
        """Return how many transactions the file has if no block has changed, else None."""
        try:
            data = self._path.read_bytes()
            head = msgspec.json.decode(data[:_HEAD_BYTES].rstrip(), type=_Head)
            digests = data[_HEAD_BYTES:]
            if self._database.stat().st_size != head.size:
                return None
        except (OSError, msgspec.MsgspecError):
            return None
        signed = _signed(head.commits, head.size, head.written, digests)
        if check is not None and not check(head.signature, signed):
            return None
        count = _count(head.size)
        wanted: Sequence[int] = range(count)
        if count > _AT_START and head.written == _written(self._database):
            wanted = [(head.next + block) % count for block in range(_AT_START)]
            self._next = (head.next + _AT_START) % count
        if self._hash(wanted) != b"".join(_of(digests, block) for block in wanted):
            return None
        self._digests = bytearray(digests)
        return head.commits

    def renew(self, commits: int) -> None:
        """Hash every block."""
        size = self._database.stat().st_size
        self._digests = bytearray(self._hash(range(_count(size))))
        with suppress(OSError):
            write_private(self._path, self._head(commits, size) + self._digests)

    def update(self, pages: Iterable[int], page_bytes: int, commits: int) -> None:
        """Hash the blocks of the pages that have changed."""
        size = self._database.stat().st_size
        count = _count(size)
        changed = sorted({(page - 1) * page_bytes // BLOCK_BYTES for page in pages})
        changed = [block for block in changed if block < count]
        self._digests.extend(bytes(max(0, count * _DIGEST_BYTES - len(self._digests))))
        del self._digests[count * _DIGEST_BYTES :]
        fresh = self._hash(changed)
        with suppress(OSError), self._path.open("r+b", buffering=0) as file:
            for place, block in enumerate(changed):
                digest = fresh[place * _DIGEST_BYTES : (place + 1) * _DIGEST_BYTES]
                self._digests[block * _DIGEST_BYTES : (block + 1) * _DIGEST_BYTES] = digest
                os.pwrite(file.fileno(), digest, _HEAD_BYTES + block * _DIGEST_BYTES)
            os.ftruncate(file.fileno(), _HEAD_BYTES + len(self._digests))
            os.pwrite(file.fileno(), self._head(commits, size), 0)

    def _head(self, commits: int, size: int) -> bytes:
        written = _written(self._database)
        signed = _signed(commits, size, written, self._digests)
        signature = self._sign(signed) if self._sign is not None else b""
        head = _Head(
            commits=commits, size=size, signature=signature, written=written, next=self._next
        )
        return msgspec.json.encode(head).ljust(_HEAD_BYTES)

    def _hash(self, blocks: Iterable[int]) -> bytes:
        if self._fd is None:
            self._fd = os.open(self._database, os.O_RDONLY | os.O_CLOEXEC)
        fd = self._fd

        def digests(blocks: Sequence[int]) -> bytes:
            read = (os.pread(fd, BLOCK_BYTES, block * BLOCK_BYTES) for block in blocks)
            return b"".join(hashlib.sha256(data).digest() for data in read)

        wanted, parts = list(blocks), os.cpu_count() or 1
        size = max(_SIDE_BY_SIDE, -(-len(wanted) // parts))
        if len(wanted) <= size:
            return digests(wanted)
        # Hashing leaves the interpreter's lock to others.
        with ThreadPoolExecutor(parts) as pool:
            split = [wanted[at : at + size] for at in range(0, len(wanted), size)]
            return b"".join(pool.map(digests, split))


def _count(size: int) -> int:
    return -(-size // BLOCK_BYTES)


def _of(digests: bytes, block: int) -> bytes:
    return digests[block * _DIGEST_BYTES : (block + 1) * _DIGEST_BYTES]


def _written(database: Path) -> str:
    """Return which file it is and when it was written last: nobody sets the time of a change."""
    stat = database.stat()
    return f"{stat.st_dev}/{stat.st_ino}/{stat.st_mtime_ns}/{stat.st_ctime_ns}"


def _signed(commits: int, size: int, written: str, digests: bytes | bytearray) -> bytes:
    said = commits.to_bytes(8) + size.to_bytes(8) + hashlib.sha256(digests).digest()
    return _PURPOSE + said + written.encode()
