"""Which boot this is: monotonic times that are kept on disk mean nothing in another."""

import time
from pathlib import Path


def boot_id() -> str:
    """Return an id of this boot: the monotonic clock means nothing in another."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"since-{round(time.time() - time.monotonic(), -2):.0f}"
