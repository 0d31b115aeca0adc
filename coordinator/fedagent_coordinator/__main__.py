"""``python -m fedagent_coordinator --config JSON|FILE``: one coordinator process."""

import asyncio
import logging
import sys
from pathlib import Path

from fedagent_coordinator.books.schema import DAMAGE, DATABASE, store_error
from fedagent_node.errors import DataDirBusyError, JoinError, LinkError
from fedagent_node.process import end, return_freed_memory, start
from fedagent_node.settings import SettingError
from fedagent_protocol.errors import RegistryError, is_disk_error
from fedagent_task.errors import DatasetError, RecipeError, TaskError

from .config import CoordinatorConfig
from .daemon import Daemon
from .errors import (
    CoordinatorError,
    HistoryLostError,
    LedgerError,
    PolicyError,
    RefusedError,
    RunConflictError,
    StoreDamagedError,
    StoreError,
    StoreFailedError,
)
from .runs import RunFinishedError

_log = logging.getLogger("fedagent_coordinator")
EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SettingError, 2),
    (RecipeError, 2),
    (RefusedError, 2),
    (JoinError, 2),
    (DataDirBusyError, 75),
    (RunConflictError, 31),
    (HistoryLostError, 32),
    (StoreDamagedError, 32),
    (StoreError, 33),
    (LedgerError, 33),
    (PolicyError, 34),
    (RegistryError, 34),
    (LinkError, 35),
    (DatasetError, 36),
    (TaskError, 36),
    (CoordinatorError, 30),
    (OSError, 35),
)
"""Exit code of each error; the first class that fits decides (docs/exit-codes.md)."""


def main() -> int:
    """Run one coordinator; return its exit code."""
    return_freed_memory()
    return start("coordinator", CoordinatorConfig.load, run, EXIT_CODES)


def run(config: CoordinatorConfig) -> int:
    """Run until the end; say what kept it from that."""
    error: Exception
    try:
        asyncio.run(_daemon(config))
    except RunFinishedError as finished:
        _log.info("%s", finished)
        return 0
    except (CoordinatorError, RegistryError, LinkError, TaskError) as failure:
        error = failure
    except DAMAGE as failure:
        error = store_error(failure, Path(config.data_dir) / DATABASE)
    except OSError as failure:
        disk = is_disk_error(failure)
        error = StoreFailedError(failure.strerror or str(failure)) if disk else failure
    else:
        return 0
    return end("coordinator", error, EXIT_CODES, as_json=config.json_events)


async def _daemon(config: CoordinatorConfig) -> None:
    await Daemon(config).run()


if __name__ == "__main__":
    sys.exit(main())
