"""Keep what C libraries print off our standard output.

HiGHS 1.12 (scipy 1.17) prints a line from inside its MIP search with a bare
`puts`, whatever its options say, and our standard output may be JSON lines. Pointing
file descriptor 1 elsewhere would take the output of every other thread with it. The
GNU C library lets a program assign `stdout` instead, which is what C code prints to
and Python's `sys.stdout` does not use. Elsewhere `stdout` may be a constant: there
nothing is done.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class _CStdout:
    """The C library's `stdout` variable, and how many callers want it silent."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._callers = 0
        self._variable: ctypes.c_void_p | None = None
        self._nowhere: int | None = None
        self._original: int | None = None

    def mute(self) -> None:
        """Point `stdout` nowhere if this is the first caller."""
        with self._lock:
            self._callers += 1
            if self._callers == 1 and self._ready() and self._variable is not None:
                self._original = self._variable.value
                self._variable.value = self._nowhere

    def unmute(self) -> None:
        """Point `stdout` back if this was the last caller."""
        with self._lock:
            self._callers -= 1
            if self._callers == 0 and self._nowhere and self._variable is not None:
                self._variable.value = self._original

    def _ready(self) -> bool:
        """Find the variable and open nowhere, once; False where that is not possible."""
        if self._nowhere is not None:
            return True
        try:
            libc = ctypes.CDLL(None)
            _ = libc.gnu_get_libc_version  # only there is the variable known to be writable
            variable = ctypes.c_void_p.in_dll(libc, "stdout")
        except (AttributeError, OSError, TypeError, ValueError):
            return False
        libc.fopen.restype = ctypes.c_void_p
        libc.fopen.argtypes = [ctypes.c_char_p, ctypes.c_char_p]
        self._nowhere = libc.fopen(b"/dev/null", b"w")
        self._variable = variable
        return self._nowhere is not None


_STDOUT = _CStdout()


@contextmanager
def quiet_c_stdout() -> Iterator[None]:
    """Drop what C code prints to its `stdout` meanwhile; any number of threads may be inside."""
    _STDOUT.mute()
    try:
        yield
    finally:
        _STDOUT.unmute()
