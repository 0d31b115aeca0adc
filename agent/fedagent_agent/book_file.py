"""Small files of what may never be forgotten, replaced whole: how they are read and refused."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from .errors import DiskError

B = TypeVar("B", bound=msgspec.Struct)


def read_book(path: Path, empty: B, refusal: type[DiskError]) -> B:
    """Return what stands in the file, or `empty` if there is none; raises `refusal` if damaged."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=type(empty))
    except FileNotFoundError:
        return empty
    except OSError as error:
        raise refusal(path, error.strerror or "cannot be read") from error
    except (msgspec.DecodeError, ValueError) as error:
        raise refusal(path, "is damaged") from error


@contextmanager
def writing_book(path: Path, refusal: type[DiskError]) -> Iterator[None]:
    """Raise `refusal` where the disk refuses what the block writes."""
    try:
        yield
    except OSError as error:
        raise refusal(path, error.strerror or "cannot be written") from error
