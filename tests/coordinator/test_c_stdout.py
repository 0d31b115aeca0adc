"""C code's stdout can be silenced without touching anybody else's."""

import subprocess
import sys

import pytest

SCRIPT = """
import ctypes, sys, threading
from fedagent_coordinator.c_stdout import quiet_c_stdout
libc = ctypes.CDLL(None)
libc.puts(b"before")
first, second = quiet_c_stdout(), quiet_c_stdout()
first.__enter__()
libc.puts(b"NO")
second.__enter__()
first.__exit__(None, None, None)
libc.puts(b"NO")
print("python", flush=True)
second.__exit__(None, None, None)
libc.puts(b"after")
def many():
    for _ in range(300):
        with quiet_c_stdout():
            libc.puts(b"NO")
threads = [threading.Thread(target=many) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
libc.puts(b"end")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
def test_only_c_output_inside_is_dropped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True
    )
    lines = done.stdout.split()
    assert sorted(lines) == ["after", "before", "end", "python"]
