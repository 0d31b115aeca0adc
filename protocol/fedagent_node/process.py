"""A process of ours: its start, which boot it belongs to, its memory, and its last words."""

import argparse
import asyncio
import gc
import json
import logging
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from .log_lines import formatter
from .settings import NodeConfig, SettingError

C = TypeVar("C", bound=NodeConfig)
ExitCodes = Iterable[tuple[type[BaseException], int]]


def start(
    role: str, load: Callable[[str | None], C], run: Callable[[C], int], codes: ExitCodes
) -> int:
    """Run the role that the command line describes; return the exit code."""
    raise_descriptors()
    parser = argparse.ArgumentParser(prog=f"fedagent_{role}")
    parser.add_argument("--config", help="a JSON object, or a TOML or JSON file")
    try:
        config = load(parser.parse_args().config)
    except SettingError as error:
        return end(role, error, codes, as_json=False)
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(config.log_format))
    logging.basicConfig(level=config.log_level.upper(), handlers=[handler])
    return run(config)


def in_two(error: BaseException) -> tuple[str, str]:
    """Return what is wrong, and the hint: our errors say ``problem; hint``."""
    text = " ".join(str(error).split()) or type(error).__name__
    hint = getattr(error, "hint", None)
    if isinstance(hint, str) and hint:
        return text.removesuffix(f"; {hint}"), hint
    problem, parted, hint = text.rpartition("; ")
    return (problem, hint) if parted else (text, "")


def end(role: str, error: BaseException, codes: ExitCodes, *, as_json: bool) -> int:
    """Write what ended a role, and return its exit code: of the first class that fits.

    `as_json`: standard output carries JSON lines, of which this is the last.
    """
    code = next(code for kind, code in codes if isinstance(error, kind))
    problem, hint = in_two(error)
    sys.stderr.write(f"fedagent {role}: {problem}{'; ' if hint else ''}{hint}\n")
    if as_json:
        last = {"error": problem, "hint": hint, "exit_code": code}
        # The reader of the events may be gone.
        with suppress(OSError):
            sys.stdout.write(json.dumps(last, separators=(",", ":")) + "\n")
            sys.stdout.flush()
    return code


def boot_id() -> str:
    """Return an id of this boot: the monotonic clock means nothing in another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"since-{round(time.time() - time.monotonic(), -2):.0f}"


DESCRIPTORS = 65_536
"""Open files and connections that a role may have: a shell's usual 1024 are fewer than a field."""


def raise_descriptors() -> int:
    """Raise the soft limit on open files as far as the hard one allows; return what it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return soft


COLLECT_EVERY_S = 60.0


async def keep_collecting(every_s: float = COLLECT_EVERY_S) -> None:
    """Leave what there is to the end, and look for rings among what comes, again and again.

    Exceptions and connections that a fault leaves are often rings. Python's own collector counts
    objects, of which a device that waits makes few: rings lay between blocks in use for an hour,
    and the heap grew around them. What is frozen is not looked at, so this takes milliseconds.
    """
    gc.collect()
    gc.freeze()
    while True:
        await asyncio.sleep(every_s)
        gc.collect()


M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
MAP_FROM_BYTES = 512 * 1024
"""Above the 256 KiB of a chunk and its envelope."""
TRIM_BYTES = 1024 * 1024


def return_freed_memory() -> bool:
    """Have glibc map what is larger than a chunk, and keep few and short heaps; False without it.

    By default the first large block that is freed raises the threshold, after which
    whole models come from heaps that fragment and never shrink. Chunks do come from
    the heap: mapping each of them anew costs more than all the rest of a round.
    """
    import ctypes  # noqa: PLC0415 - an agent has no need of it

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {M_MMAP_THRESHOLD: MAP_FROM_BYTES, M_TRIM_THRESHOLD: TRIM_BYTES, M_ARENA_MAX: 2}
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(taken)


TRIM_EVERY_S = 1.0
"""A trim takes 0.2 ms; what a round needed for a moment is spread over many pages."""


def trim_now_and_again(every_s: float = TRIM_EVERY_S) -> bool:
    """Have a thread give back the pages of the heap that nothing uses; False without glibc.

    Blocks that live for years lie between those of a round, and by default glibc gives back
    only what is free at the end of the heap: under faults a coordinator grew by megabytes an
    hour although it used no more of them.
    """
    import ctypes  # noqa: PLC0415 - of commands, which import this too, none needs it

    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError):
        return False

    def work() -> None:
        while True:
            time.sleep(every_s)
            trim(0)

    threading.Thread(target=work, name="trim", daemon=True).start()
    return True
