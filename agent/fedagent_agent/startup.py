"""What an agent does once in a forked child, which takes the libraries it needs with it.

Call these before any thread is started.
"""

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from fedagent_node.data_dir import IDENTITY_FILE, Identity, load_or_create

from .streams import parse_stream
from .streams.base import StreamError, StreamOpenError
from .streams.spec import StreamSpec


def load_identity(data_dir: Path) -> Identity:
    """Return the identity kept in a data directory, made if there is none.

    Making a key loads a library of several megabytes.

    Raises:
        IdentityError: The file is there and damaged.
    """
    if not (data_dir / IDENTITY_FILE).exists():
        _forked(lambda: bool(load_or_create(data_dir)))
    # Where the child failed, the same error comes here, in words.
    return load_or_create(data_dir)


def check_stream(text: str) -> None:
    """Open and close the stream, where it is a file; better now than in every round.

    Reading a dataset loads libraries that the agent itself has no need of.

    Raises:
        StreamError: It cannot be read: no such file, column or label.
    """
    spec = parse_stream(text)
    if not spec.opened_at_start:
        return
    # A child that was killed has no result: then the first order will show it.
    problem = _forked(lambda: _problem(spec))
    if isinstance(problem, list):
        raise StreamOpenError(*problem)


def _forked(work: Callable[[], object]) -> object:
    """Return what a child process finds out, as JSON has it; None if it fails."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(work()).encode())
        finally:
            # Nothing of the parent may run here: no handlers, no buffers.
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return json.loads(found) if found else None


def _problem(spec: StreamSpec) -> tuple[str, str, str] | None:
    stream = spec.create(seed=0)
    try:
        stream.open(time.monotonic())
    except StreamError as error:
        return error.key, error.reason[:1000], error.hint[:1000]
    stream.close()
    return None
