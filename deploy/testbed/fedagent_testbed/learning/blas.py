"""One BLAS thread, so that results do not depend on how many cores a machine has."""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_MAPS = Path("/proc/self/maps")
_PREFIXES = ("scipy_openblas", "openblas")
_SUFFIXES = ("64_", "_64", "")


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep every OpenBLAS of this process to one thread while inside.

    A product of the shapes here gains nothing from a second thread. Under another
    BLAS nothing is changed: set its own variable (``OMP_NUM_THREADS=1``) there.
    """
    before = [(put, get()) for get, put in _controls()]
    for put, _ in before:
        put(1)
    try:
        yield
    finally:
        for put, threads in before:
            put(threads)


def blas_threads() -> tuple[int, ...]:
    """Return the threads of each OpenBLAS of this process; empty where there is none."""
    return tuple(get() for get, _ in _controls())


@cache
def _controls() -> tuple[tuple[Callable[[], int], Callable[[int], None]], ...]:
    """Return getter and setter of each OpenBLAS that is loaded."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return ()
    paths = sorted({line.split(maxsplit=5)[5] for line in lines if "openblas" in line})
    found = []
    for path in paths:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        found += [pair for pair in [_pair(library)] if pair]
    return tuple(found)


def _pair(library: ctypes.CDLL) -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """Return getter and setter of one library, whatever its build calls them."""
    for prefix in _PREFIXES:
        for suffix in _SUFFIXES:
            get = getattr(library, f"{prefix}_get_num_threads{suffix}", None)
            put = getattr(library, f"{prefix}_set_num_threads{suffix}", None)
            if get is not None and put is not None:
                get.restype, put.argtypes, put.restype = ctypes.c_int, [ctypes.c_int], None
                return get, put
    return None
