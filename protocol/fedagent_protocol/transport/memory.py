"""Give freed memory back to the system: edges live beside other things on small machines."""

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
MAP_FROM_BYTES = 512 * 1024
"""Above the 256 KiB of a chunk and its envelope."""
TRIM_BYTES = 1024 * 1024


def return_freed_memory() -> bool:
    """Tell glibc to map what is larger than a chunk, and to keep few and short heaps.

    By default the first large block that is freed raises the threshold, after which
    whole models come from heaps that fragment and never shrink. Chunks do come from
    the heap: mapping each of them anew costs more than all the rest of a round.
    Returns False, and changes nothing, with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {M_MMAP_THRESHOLD: MAP_FROM_BYTES, M_TRIM_THRESHOLD: TRIM_BYTES, M_ARENA_MAX: 2}
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(taken)
