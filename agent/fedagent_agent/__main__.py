"""Run an agent: ``python -m fedagent_agent --config JSON``."""

import argparse
import asyncio
import logging
import sys

from fedagent_node.errors import (
    REFUSED_SETTINGS,
    DataDirBusyError,
    DataDirError,
    IdentityError,
    LinkError,
)
from fedagent_node.process import end
from fedagent_node.settings import SettingError

from .config import load
from .daemon import AgentDaemon
from .errors import AgentError, OpinionBookError, OutboxError
from .startup import check_stream
from .streams.spec import StreamError

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SettingError, 2),
    *((kind, 2) for kind in REFUSED_SETTINGS),
    (DataDirError, 2),
    (DataDirBusyError, 75),
    (IdentityError, 11),
    (OutboxError, 12),
    (OpinionBookError, 12),
    (StreamError, 13),
    (LinkError, 10),
    (AgentError, 10),
    (OSError, 10),
)
"""Exit code of each error; the first class that fits decides (docs/exit-codes.md)."""


def main() -> int:
    """Run until SIGTERM, SIGINT, or the end of the parent; return the exit code."""
    parser = argparse.ArgumentParser(prog="fedagent_agent", description=__doc__)
    parser.add_argument("--config", help="a JSON object, or a TOML or JSON file")
    try:
        config = load(parser.parse_args().config)
    except SettingError as error:
        return end("agent", error, EXIT_CODES, as_json=False)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        check_stream(config.stream)
        if config.held_out:
            check_stream(config.held_out)
        asyncio.run(AgentDaemon(config).run())
    except (AgentError, LinkError, StreamError, OSError) as error:
        return end("agent", error, EXIT_CODES, as_json=config.json_events)
    return 0


if __name__ == "__main__":
    sys.exit(main())
