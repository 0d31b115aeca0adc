"""Run an edge: ``python -m fedagent_edge --config JSON``."""

import argparse
import asyncio
import logging
import sys

from fedagent_protocol.transport.errors import DataDirBusyError, LinkError
from fedagent_protocol.transport.memory import return_freed_memory

from .config import load
from .daemon import EdgeDaemon
from .errors import EdgeError, StateError

EXIT_CONFIG = 2
EXIT_FAILED = 20
EXIT_DISK = 21
EXIT_BUSY = 75


def main() -> int:
    """Run until SIGTERM, SIGINT, or the end of the parent; return the exit code."""
    parser = argparse.ArgumentParser(prog="fedagent_edge", description=__doc__)
    parser.add_argument("--config", help="a JSON object, or a TOML or JSON file")
    try:
        config = load(parser.parse_args().config)
    except LinkError as error:
        print(f"fedagent edge: {error}", file=sys.stderr)  # noqa: T201 - no logging yet
        return EXIT_CONFIG
    return_freed_memory()
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s"
    )
    try:
        asyncio.run(EdgeDaemon(config).run())
    except DataDirBusyError as error:
        print(f"fedagent edge: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_BUSY
    except StateError as error:
        print(f"fedagent edge: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_DISK
    except (LinkError, EdgeError, OSError) as error:
        print(f"fedagent edge: {error}", file=sys.stderr)  # noqa: T201
        return EXIT_FAILED
    return 0


if __name__ == "__main__":
    sys.exit(main())
