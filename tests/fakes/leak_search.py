"""Look for numbers that must not leave a device in everything that others hold or carry.

A canary is a number from a device's own history: an opinion, belief, index or mean. It is looked
for as float64 and float32, little and big endian, in hexadecimal and base64 of these too, and as
decimal text: a number of at least 6 significant digits that is the canary rounded or cut to so
many. `trivial` ones are left out: a find of them would say nothing.
"""

import binascii
import bisect
import math
import re
import sqlite3
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from fedagent_agent.peers.core.records import SlotRecord

DIGITS = 6
"""Fewer significant digits of a number occur by chance."""
_NUMBER = re.compile(rb"(?<![\w.])(\d*)\.(\d{5,})(?:[eE]([+-]?\d{1,3}))?")
_HEX = re.compile(rb"[0-9a-fA-F]{8,}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]{6,}")
_FRACTION = 64


@dataclass(frozen=True, slots=True)
class Leak:
    """A canary in the hands of others: whose and which, the topic or file, and its form there."""

    what: str
    where: str
    form: str


@dataclass
class Search:
    """All canaries of a run, by their value."""

    canaries: dict[float, str] = field(default_factory=dict)
    _words: dict[int, dict[int, float]] = field(default_factory=lambda: {4: {}, 8: {}})

    @classmethod
    def of(cls, histories: Mapping[str, Iterable[SlotRecord]]) -> "Search":
        made = cls()
        for agent, slots in histories.items():
            for slot in slots:
                for name in ("opinion", "mean", "belief", "index"):
                    if (value := getattr(slot, name)) is not None:
                        made.add(value, f"{name} of {agent[:8]} in slot {slot.slot}")
        return made

    def add(self, value: float, what: str) -> None:
        """Look for a number too, unless it is trivial."""
        if trivial(value):
            return
        self.canaries.setdefault(value, what)
        for size, kind in ((8, "d"), (4, "f")):
            for sign in "<>":
                word = int.from_bytes(struct.pack(sign + kind, value), "little")
                self._words[size][word] = value

    def look(self, where: str, data: bytes, *, short: bool = True) -> list[Leak]:
        """Return every canary in these bytes.

        `short`: look for float32 in binary too. Not in a model: of a million weights some
        are like a canary.
        """
        found: list[Leak] = []
        for form, part in (("", data), ("hex of ", _unhex(data)), ("base64 of ", _unbase64(data))):
            for size in (8, 4) if short else (8,):
                words = self._words[size]
                values = sorted({words[hit] for hit in _hits(part, size, words)})
                name = f"{form}float{8 * size}"
                found += [Leak(self.canaries[one], where, name) for one in values]
        return found + list(self._text(where, data))

    def _text(self, where: str, data: bytes) -> Iterator[Leak]:
        values = sorted(self.canaries)
        for match in _NUMBER.finditer(data):
            digits, said = len((match[1] + match[2]).lstrip(b"0")), float(match[0])
            if digits < DIGITS:
                continue
            spread = abs(said) * 10.0 ** (2 - DIGITS)
            first = bisect.bisect_left(values, said - spread)
            for value in values[first : bisect.bisect_right(values, said + spread)]:
                if says(said, min(digits, 17), value):
                    yield Leak(self.canaries[value], where, f"text {match[0].decode()}")

    def look_through(self, folder: Path, *, models: tuple[str, ...] = ()) -> list[Leak]:
        """Return every canary in the files below a folder; `models` are folders of weights."""
        found = []
        for path in sorted(one for one in folder.rglob("*") if one.is_file()):
            name = path.relative_to(folder)
            data = path.read_bytes()
            plain = inflated(path) if data.startswith(b"SQLite format 3\0") else ()
            for part in (data, *plain):
                found += self.look(str(name), part, short=not set(name.parts) & set(models))
        return found


def _unhex(data: bytes) -> bytes:
    runs = [found[0][shift:] for found in _HEX.finditer(data) for shift in (0, 1)]
    return bytes(8).join(binascii.unhexlify(run[: len(run) // 2 * 2]) for run in runs)


def _unbase64(data: bytes) -> bytes:
    plain = data.translate(bytes.maketrans(b"-_", b"+/"))  # the URL-safe form too
    runs = [found[0][shift:] for found in _BASE64.finditer(plain) for shift in range(4)]
    return bytes(8).join(binascii.a2b_base64(run + b"A" * (-len(run) % 4)) for run in runs)


def _hits(data: bytes, size: int, known: Mapping[int, float]) -> set[int]:
    words = np.fromiter(known, dtype=f"<u{size}", count=len(known))
    hits: set[int] = set()
    for shift in range(min(size, len(data))):
        count = (len(data) - shift) // size
        here = np.frombuffer(data, dtype=f"<u{size}", count=count, offset=shift)
        hits |= set(np.intersect1d(here, words).tolist())
    return hits


def inflated(path: Path) -> Iterator[bytes]:
    """Yield what a database keeps deflated, which hides what is in it from a plain look."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as sql:
        tables = sql.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (table,) in tables:
            for row in sql.execute(f'SELECT * FROM "{table}"'):
                for value in row:
                    if isinstance(value, bytes):
                        with suppress(zlib.error):
                            yield zlib.decompress(value)


def trivial(value: float) -> bool:
    """Return whether a number occurs by chance, or is what counters and shares are as well."""
    if not math.isfinite(value):
        return True
    near = Fraction(value).limit_denominator(_FRACTION)
    return abs(value - near) < 1e-9 or struct.pack("<f", value).count(0) >= 2


def says(said: float, digits: int, value: float) -> bool:
    if said == 0 or value == 0 or not 0.5 < said / value < 2:
        return False
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return any(
        -1e-9 * unit <= each - said < unit or abs(each - said) <= 0.5 * unit * (1 + 1e-9)
        for each in (value, float(np.float32(value)))
    )
