"""Give freed memory back to the system: edges live beside other things on small machines."""

import ctypes

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8
MAP_FROM_BYTES = 128 * 1024


def return_freed_memory() -> bool:
    """Tell glibc to map large blocks one by one, and to keep few arenas.

    By default the first large block that is freed raises the threshold, after which
    chunks of models come from heaps that fragment and never shrink. Returns False,
    and changes nothing, with another C library.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    settings = {M_MMAP_THRESHOLD: MAP_FROM_BYTES, M_TRIM_THRESHOLD: MAP_FROM_BYTES, M_ARENA_MAX: 2}
    taken = [mallopt(name, value) == 1 for name, value in settings.items()]
    return all(taken)
