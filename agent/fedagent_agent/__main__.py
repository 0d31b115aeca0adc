"""Run an agent: ``python -m fedagent_agent --config JSON``."""

import argparse
import asyncio
import logging
import sys

from fedagent_protocol.transport.errors import (
    DataDirBusyError,
    IdentityError,
    LinkError,
    PlainTextError,
)

from .config import load
from .daemon import AgentDaemon
from .errors import AgentError, OutboxError

EXIT_CONFIG = 2
EXIT_FAILED = 10
EXIT_IDENTITY = 11
EXIT_OUTBOX = 12
EXIT_BUSY = 75


def main() -> int:
    """Run until SIGTERM, SIGINT, or the end of the parent; return the exit code."""
    parser = argparse.ArgumentParser(prog="fedagent_agent", description=__doc__)
    parser.add_argument("--config", help="a JSON object, or a TOML or JSON file")
    try:
        config = load(parser.parse_args().config)
    except LinkError as error:
        return _say(error, EXIT_CONFIG)
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        asyncio.run(AgentDaemon(config).run())
    except DataDirBusyError as error:
        return _say(error, EXIT_BUSY)
    except PlainTextError as error:
        return _say(error, EXIT_CONFIG)
    except IdentityError as error:
        return _say(error, EXIT_IDENTITY)
    except OutboxError as error:
        return _say(error, EXIT_OUTBOX)
    except (LinkError, AgentError, OSError) as error:
        return _say(error, EXIT_FAILED)
    return 0


def _say(error: Exception, code: int) -> int:
    print(f"fedagent agent: {error}", file=sys.stderr)  # noqa: T201 - for the person who starts it
    return code


if __name__ == "__main__":
    sys.exit(main())
