"""The `fedagent` script: every foreseen end is one line and a documented exit code.

Little is imported here, so that Ctrl-C has an orderly end from the first moment on.
"""

import os
import signal
import sys
from types import FrameType

from fedagent_protocol.errors import FedagentError

from .errors import InterruptedEnd
from .output import fail


def main() -> None:
    """Run the command line."""
    as_json = "--json" in sys.argv[1:]
    # Small products gain nothing from a second thread: on a busy machine it makes them a hundred
    # times slower, and an idle pool costs a device memory.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Where SIGINT is ignored (a job in the background), it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        from .main import run  # noqa: PLC0415 - see above

        run()
    except (FedagentError, InterruptedEnd) as error:
        fail(error, as_json=as_json)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise InterruptedEnd


if __name__ == "__main__":
    main()
