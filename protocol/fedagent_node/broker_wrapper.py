"""Run a broker that ends with the process that started it, however that ends.

``... mosquitto PROGRAM CONFIG`` or ``... embedded JSON``. The parent holds the other end of
our standard input, which the kernel closes when it is gone. Should we be killed ourselves,
the kernel kills mosquitto, which asked for that. We write the broker's process id first.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Never

PR_SET_PDEATHSIG = 1
TERM_GRACE_S = 1.0
EXIT_USAGE = 64


def main() -> None:
    """Run the broker named on the command line."""
    match sys.argv[1:]:
        case ["mosquitto", program, config]:
            sys.exit(_run_mosquitto(program, config))
        case ["embedded", config]:
            _run_embedded(config)
        case _:
            sys.exit(EXIT_USAGE)


def _run_mosquitto(program: str, config: str) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    parent = os.getpid()

    def die_with_us() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)

    # This process has one thread here, so that the hook between fork and exec is safe.
    broker = subprocess.Popen(
        [program, "-c", config],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        preexec_fn=die_with_us,  # noqa: PLW1509 - see above
    )
    _announce(broker.pid)

    def stop() -> Never:
        broker.terminate()
        try:
            broker.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            broker.kill()
        os._exit(0)

    _when_parent_goes(stop)
    return broker.wait()


def _run_embedded(config: str) -> None:
    # Imported here: the wrapper of mosquitto stays small.
    import asyncio  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    from .embedded import EmbeddedConfig, serve  # noqa: PLC0415

    settings = msgspec.json.decode(config, type=EmbeddedConfig)
    _announce(os.getpid())
    _when_parent_goes(lambda: os._exit(0))
    try:
        asyncio.run(serve(settings))
    except OSError as exc:
        sys.exit(str(exc))


def _announce(pid: int) -> None:
    os.write(sys.stdout.fileno(), f"{pid}\n".encode())


def _when_parent_goes(stop: Callable[[], Never]) -> None:
    def watch() -> None:
        while os.read(sys.stdin.fileno(), 4096):
            pass
        stop()

    threading.Thread(target=watch, name="parent-watch", daemon=True).start()


if __name__ == "__main__":
    main()
