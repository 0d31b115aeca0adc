"""Count, sums and sums of squares of features, exactly: in whole numbers.

A float32 is a whole number of 2^-149, its square one of 2^-298. Sums of such whole numbers
do not depend on order or grouping, and what a device can have seen is told from what it
cannot without any rounding.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from fedagent_protocol.errors import ProtocolError
from fedagent_task.recipe.spec import MAX_NAMES_BYTES

_UNIT, _SQUARE = 149, 298
LARGEST = 2.0**67
"""No sensor's number is larger: nanoseconds since 1970 are 2^61."""
_LARGEST = 1 << (67 + _UNIT)
_RESOLUTION = 2.0**-23
_ROWS = 4096
"""So many products of two 24-bit numbers, with room to spare, fit into an int64."""


@dataclass(frozen=True, slots=True)
class Moments:
    """What samples add up to: sums in units of 2^-149, sums of squares in units of 2^-298.

    `names` are what streams call the features: empty if none says it, None if they differ.
    """

    count: int
    sums: tuple[int, ...]
    squares: tuple[int, ...]
    names: tuple[str, ...] | None = ()

    @classmethod
    def none(cls, features: int) -> "Moments":
        """Return those of no samples."""
        return cls(0, (0,) * features, (0,) * features)

    @classmethod
    def of(cls, x: npt.NDArray[np.float32]) -> "Moments":
        """Return those of samples [n, features], all finite."""
        total = cls.none(x.shape[1])
        for start in range(0, len(x), _ROWS):
            total += cls._of(x[start : start + _ROWS])
        return total

    @classmethod
    def _of(cls, x: npt.NDArray[np.float32]) -> "Moments":
        fraction, power = np.frexp(x)
        whole = np.ldexp(fraction, 24).astype(np.int64)
        power = np.where(whole == 0, 0, power - 24)
        sums, squares = [0] * x.shape[1], [0] * x.shape[1]
        for exponent in np.unique(power).tolist():
            # A float32 below 2^-126 has fewer bits: what is shifted out here is zeros.
            part = np.where(power == exponent, whole, 0)
            for total, found, shift in (
                (sums, part.sum(axis=0), exponent + _UNIT),
                (squares, (part * part).sum(axis=0), 2 * exponent + _SQUARE),
            ):
                for i, number in enumerate(found.tolist()):
                    total[i] += number << shift if shift >= 0 else number >> -shift
        return cls(len(x), tuple(sums), tuple(squares))

    def __add__(self, other: "Moments") -> "Moments":
        return Moments(
            self.count + other.count,
            tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            tuple(a + b for a, b in zip(self.squares, other.squares, strict=True)),
            self.names
            if other.names in ((), self.names)
            else other.names
            if self.names == ()
            else None,
        )

    def called(self, names: tuple[str, ...]) -> "Moments":
        """Return the same with names, as far as a recipe may have such and they are short."""
        short = 0 < len("".join(names).encode()) <= MAX_NAMES_BYTES
        return replace(self, names=names) if short and _are_names(names) else self

    def means(self) -> list[float]:
        """Return the mean of each feature."""
        return [float(Fraction(s, self.count << _UNIT)) for s in self.sums]

    def deviations(self) -> list[float]:
        """Return the deviation of each feature; 1 for one that does not vary.

        It is never less than what float32 can tell apart at the feature's mean: samples are
        scaled as they were read, and nanoseconds since 1970 differ by 10^11 from their float32.
        """
        variances = (
            Fraction(self.count * q - s * s, self.count**2 << _SQUARE)
            for s, q in zip(self.sums, self.squares, strict=True)
        )
        return [
            max(math.sqrt(v) if v > 0 else 1.0, abs(mean) * _RESOLUTION)
            for v, mean in zip(variances, self.means(), strict=True)
        ]

    def encode(self) -> bytes:
        """Return bytes for the wire; see `decode`."""
        numbers = (self.count, *self.sums, *self.squares)
        names = "\n" if self.names is None else "\n".join(self.names)
        return b"".join([*map(_packed, numbers), names.encode()])

    @classmethod
    def decode(cls, data: bytes, *, features: int, most: int) -> "Moments":
        """Return what `encode` made, if samples can be like that: at most `most` of them.

        The bytes are the count, all sums, all squares; each two bytes of length and a signed
        big-endian number. Then come the names, a line each.

        Raises:
            ProtocolError: They cannot, in one word: ``form``, ``count``, ``sum`` or ``square``.
        """
        (count, *rest), called = _unpacked(data, 1 + 2 * features)
        names = None if called == "\n" else tuple(called.split("\n")) if called else ()
        if names and (len(names) != features or not _are_names(names)):
            raise ProtocolError("form")
        if not 1 <= count <= most:
            raise ProtocolError("count")
        sums, squares = rest[:features], rest[features:]
        if any(abs(s) > count * _LARGEST for s in sums):
            raise ProtocolError("sum")
        # The mean of squares is at least the square of the mean.
        if not all(
            s * s <= count * q <= (count * _LARGEST) ** 2
            for s, q in zip(sums, squares, strict=True)
        ):
            raise ProtocolError("square")
        return cls(count, tuple(sums), tuple(squares), names)


def _are_names(names: Sequence[str]) -> bool:
    """Tell whether features may be called so."""
    good = all(0 < len(name) <= 64 and name.isprintable() for name in names)
    return good and len(set(names)) == len(names)


def _packed(number: int) -> bytes:
    size = (number.bit_length() + 8) // 8
    return size.to_bytes(2, "big") + number.to_bytes(size, "big", signed=True)


def _unpacked(data: bytes, count: int) -> tuple[Sequence[int], str]:
    """Return so many numbers, and the text behind them."""
    numbers: list[int] = []
    at = 0
    while at < len(data) and len(numbers) < count:
        size = int.from_bytes(data[at : at + 2], "big")
        body = data[at + 2 : at + 2 + size]
        number = int.from_bytes(body, "big", signed=True)
        if size > 128 or data[at : at + 2 + size] != _packed(number):
            raise ProtocolError("form")
        numbers.append(number)
        at += 2 + size
    try:
        text = data[at:].decode()
    except UnicodeDecodeError as error:
        raise ProtocolError("form") from error
    if len(numbers) != count:
        raise ProtocolError("form")
    return numbers, text
