"""Run an edge: ``python -m fedagent_edge --config JSON``."""

import asyncio
import sys
from pathlib import Path

from fedagent_node.errors import DataDirBusyError, DiskError, JoinError, LinkError, disk_refused
from fedagent_node.process import end, return_freed_memory, start
from fedagent_node.settings import SettingError
from fedagent_protocol.errors import is_disk_error

from .config import EdgeConfig
from .daemon import EdgeDaemon

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SettingError, 2),
    (JoinError, 2),
    (DataDirBusyError, 75),
    (DiskError, 21),
    (LinkError, 20),
    (OSError, 20),
)
"""Exit code of each error; the first class that fits decides (docs/exit-codes.md)."""


def main() -> int:
    """Run until SIGTERM, SIGINT, or the end of the parent; return the exit code."""
    return_freed_memory()
    return start("edge", EdgeConfig.load, run, EXIT_CODES)


def run(config: EdgeConfig) -> int:
    """Run until the end; report what kept it from that."""
    error: Exception
    try:
        asyncio.run(EdgeDaemon(config).run())
    except (LinkError, DiskError) as failure:
        error = failure
    except OSError as failure:
        error = failure
        if is_disk_error(failure):
            error = disk_refused(Path(failure.filename or config.data_dir), failure)
    else:
        return 0
    return end("edge", error, EXIT_CODES, as_json=config.json_events)


if __name__ == "__main__":
    sys.exit(main())
