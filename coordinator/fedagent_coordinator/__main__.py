"""``python -m fedagent_coordinator --config JSON|FILE``: one coordinator process."""

import argparse
import asyncio
import logging
import sys

from fedagent_protocol.transport.errors import DataDirBusyError, LinkError
from fedagent_protocol.transport.settings import SettingError
from fedagent_task.errors import DatasetError, RecipeError, TaskError

from .config import CoordinatorConfig, load
from .daemon import Daemon
from .errors import (
    CoordinatorError,
    HistoryLostError,
    LedgerError,
    PolicyError,
    RunConflictError,
    StoreBusyError,
    StoreError,
)
from .runs import RunFinishedError

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SettingError, 2),
    (RecipeError, 2),
    (DataDirBusyError, 75),
    (StoreBusyError, 75),
    (RunConflictError, 31),
    (HistoryLostError, 32),
    (StoreError, 33),
    (LedgerError, 33),
    (PolicyError, 34),
    (LinkError, 35),
    (DatasetError, 36),
    (TaskError, 36),
    (CoordinatorError, 30),
)
"""Exit code of each error; the first class that fits decides (docs/exit-codes.md)."""

_log = logging.getLogger("fedagent_coordinator")


def main(arguments: list[str] | None = None) -> int:
    """Run one coordinator; return its exit code."""
    parser = argparse.ArgumentParser(prog="fedagent_coordinator", description=__doc__)
    parser.add_argument("--config", help="settings as JSON, or a TOML or JSON file")
    given = parser.parse_args(arguments)
    try:
        config = load(given.config)
    except SettingError as error:
        sys.stderr.write(f"fedagent coordinator: {error}\n")
        return 2
    logging.basicConfig(
        stream=sys.stderr,
        level=config.log_level.upper(),
        format="%(asctime)s %(levelname)s %(message)s",
    )
    return run(config)


def run(config: CoordinatorConfig) -> int:
    """Run until the end; log what kept it from that, in one line."""
    try:
        asyncio.run(_daemon(config))
    except RunFinishedError as finished:
        _log.info("%s", finished)
        return 0
    except (CoordinatorError, LinkError, TaskError) as error:
        _log.error("%s", error)
        return next(code for kind, code in EXIT_CODES if isinstance(error, kind))
    return 0


async def _daemon(config: CoordinatorConfig) -> None:
    await Daemon(config).run()


if __name__ == "__main__":
    sys.exit(main())
