"""Run an agent: ``python -m fedagent_agent --config JSON``."""

import asyncio
import sys
from pathlib import Path

from fedagent_node.errors import (
    CredentialsError,
    DataDirBusyError,
    DiskError,
    JoinError,
    LinkError,
    disk_refused,
)
from fedagent_node.process import end, start
from fedagent_node.settings import SettingError
from fedagent_protocol.errors import is_disk_error

from .books import BooksError
from .config import AgentConfig
from .daemon import AgentDaemon, check_stream
from .streams.spec import StreamError

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SettingError, 2),
    (JoinError, 2),
    (DataDirBusyError, 75),
    (CredentialsError, 11),
    (BooksError, 12),
    (StreamError, 13),
    (LinkError, 10),
    (DiskError, 10),
    (OSError, 10),
)
"""The first class that fits decides (docs/exit-codes.md)."""


def main() -> int:
    """Run until SIGTERM, SIGINT, or the end of the parent; return the exit code."""
    return start("agent", AgentConfig.load, run, EXIT_CODES)


def run(config: AgentConfig) -> int:
    """Run until the end; say what kept it from that."""
    error: Exception
    try:
        check_stream(config.stream)
        if config.held_out:
            check_stream(config.held_out)
        asyncio.run(AgentDaemon(config).run())
    except (DiskError, LinkError, StreamError) as failure:
        error = failure
    except OSError as failure:
        error = failure
        if is_disk_error(failure):
            error = disk_refused(Path(failure.filename or config.data_dir), failure)
    else:
        return 0
    return end("agent", error, EXIT_CODES, as_json=config.json_events)


if __name__ == "__main__":
    sys.exit(main())
