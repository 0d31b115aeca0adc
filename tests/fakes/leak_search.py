"""Look for numbers that must not leave a device in everything that others hold or carry.

A canary is a number from a device's own history: an opinion, belief, index or mean. It is
looked for as

- float64 and float32, little and big endian;
- hexadecimal and base64 (also URL-safe) of these bytes, at each alignment;
- decimal text: a number with at least 6 significant digits that is the canary rounded or
  cut to so many digits.

Three kinds of canaries are left out, each with its reason: numbers that others know anyway
or that occur by chance, because a find of them would say nothing.
"""

import binascii
import bisect
import math
import re
import sqlite3
import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path

import numpy as np

from fedagent_agent.peers.core.records import SlotRecord

DIGITS = 6
"""Fewer significant digits of a number occur by chance."""
MIN_ZEROS = 2
_NUMBER = re.compile(rb"(?<![\w.])(\d*)\.(\d{5,})(?:[eE]([+-]?\d{1,3}))?")
_FRACTION = 64
_HEX = re.compile(rb"[0-9a-fA-F]{8,}")
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{6,}")
_URL_SAFE = bytes.maketrans(b"-_", b"+/")
_GAP = bytes(8)


@dataclass(frozen=True, slots=True)
class Canary:
    """A number that must not leave its device."""

    value: float
    what: str  # whose and which


@dataclass(frozen=True, slots=True)
class Leak:
    """A canary in the hands of others."""

    canary: Canary
    where: str  # topic, file or stream
    form: str  # how it was written

    def __str__(self) -> str:
        return f"{self.canary.what} = {self.canary.value!r} is in {self.where} as {self.form}"


@dataclass
class Search:
    """All canaries of a run, and how many numbers are not looked for, by reason."""

    canaries: list[Canary] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    _known: set[float] = field(default_factory=set)
    _words: dict[int, dict[int, tuple[Canary, str]]] = field(default_factory=lambda: {4: {}, 8: {}})

    @classmethod
    def of(cls, histories: Mapping[str, Iterable[SlotRecord]]) -> "Search":
        made = cls()
        for agent, slots in histories.items():
            for slot in slots:
                for name in ("opinion", "mean", "belief", "index"):
                    value = getattr(slot, name)
                    if value is not None:
                        made.add(value, f"{name} of {agent[:8]} in slot {slot.slot}")
        return made

    def add(self, value: float, what: str) -> None:
        """Look for a number too, unless it is trivial."""
        if value in self._known:
            return
        self._known.add(value)
        if (reason := trivial(value)) is not None:
            self.left_out[reason] += 1
            return
        canary = Canary(value, what)
        self.canaries.append(canary)
        for size, kind in ((8, "d"), (4, "f")):
            for order, sign in (("little", "<"), ("big", ">")):
                word = int.from_bytes(struct.pack(sign + kind, value), "little")
                self._words[size].setdefault(word, (canary, f"float{8 * size} {order} endian"))

    def look(self, where: str, data: bytes, *, short: bool = True) -> list[Leak]:
        """Return every canary in these bytes.

        `short`: look for float32 in binary too. Not in a model: of a million weights some
        are like a canary.
        """
        sizes = (8, 4) if short else (8,)
        found: list[Leak] = []
        for prefix, part in (
            ("", data),
            ("hex of ", _unhex(data)),
            ("base64 of ", _unbase64(data)),
        ):
            for size in sizes:
                found += [
                    Leak(canary, where, prefix + form) for canary, form in self._raw(part, size)
                ]
        return found + list(self._text(where, data))

    def _raw(self, data: bytes, size: int) -> Iterator[tuple[Canary, str]]:
        known = self._words[size]
        if not known or len(data) < size:
            return
        words = np.fromiter(known, dtype=f"<u{size}", count=len(known))
        hits: set[int] = set()
        for shift in range(size):
            usable = (len(data) - shift) // size * size
            here = np.frombuffer(data, dtype=f"<u{size}", count=usable // size, offset=shift)
            hits |= set(np.intersect1d(here, words).tolist())
        yield from (known[hit] for hit in sorted(hits))

    def _text(self, where: str, data: bytes) -> Iterator[Leak]:
        values = sorted((canary.value, n) for n, canary in enumerate(self.canaries))
        for text, said, digits in _numbers(data):
            spread = abs(said) * 10.0 ** (2 - DIGITS)
            start = bisect.bisect_left(values, (said - spread, -1))
            for value, n in values[start:]:
                if value > said + spread:
                    break
                if says(said, digits, value):
                    yield Leak(self.canaries[n], where, f"text {text}")

    def look_through(self, folder: Path, *, models: tuple[str, ...] = ()) -> list[Leak]:
        """Return every canary in the files below a folder; `models` are folders of weights."""
        found = []
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                name = path.relative_to(folder)
                short = not set(name.parts) & set(models)
                data = path.read_bytes()
                found += self.look(str(name), data, short=short)
                if data.startswith(b"SQLite format 3\0"):
                    for plain in inflated(path):
                        found += self.look(str(name), plain, short=short)
        return found


def inflated(path: Path) -> Iterator[bytes]:
    """Yield what a database keeps deflated, which hides what is in it from a plain look."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as sql:
        for (table,) in sql.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table'"
        ).fetchall():
            for row in sql.execute(f'SELECT * FROM "{table}"'):
                for value in row:
                    if isinstance(value, bytes):
                        with suppress(zlib.error):
                            yield zlib.decompress(value)


def trivial(value: float) -> str | None:
    """Return why a number is not looked for; None if it is.

    Small fractions are what counters, shares and other devices' scores are as well, and
    short binary numbers are bytes that occur by chance.
    """
    if not math.isfinite(value):
        return "not finite"
    near = Fraction(value).limit_denominator(_FRACTION)
    if abs(value - near) < 1e-9:
        return f"a fraction with a denominator of at most {_FRACTION}"
    if struct.pack("<f", value).count(0) >= MIN_ZEROS:
        return "a float32 of two bytes, which occur by chance"
    return None


def says(said: float, digits: int, value: float) -> bool:
    if said == 0 or value == 0 or not 0.5 < said / value < 2:
        return False
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - digits + 1)
    return any(-1e-9 * unit <= each - said < unit or abs(each - said) <= 0.5 * unit * (1 + 1e-9)
               for each in (value, _float32(value)))  # fmt: skip


def _unhex(data: bytes) -> bytes:
    runs = [found[0][shift:] for found in _HEX.finditer(data) for shift in (0, 1)]
    return _GAP.join(binascii.unhexlify(run[: len(run) // 2 * 2]) for run in runs)


def _unbase64(data: bytes) -> bytes:
    runs = [
        found[0][shift:].translate(_URL_SAFE)
        for found in _BASE64.finditer(data)
        for shift in range(4)
    ]
    return _GAP.join(binascii.a2b_base64(run + b"A" * (-len(run) % 4)) for run in runs)


def _numbers(data: bytes) -> Iterator[tuple[str, float, int]]:
    for found in _NUMBER.finditer(data):
        digits = len((found[1] + found[2]).lstrip(b"0"))
        if digits >= DIGITS:
            yield found[0].decode(), float(found[0]), min(digits, 17)


def _float32(value: float) -> float:
    return float(struct.unpack("<f", struct.pack("<f", value))[0])
