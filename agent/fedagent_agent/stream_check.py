"""Whether the stream can be opened at all, said at the start and not in every round.

Reading a dataset loads libraries that the agent itself has no need of: a child
process does it, and takes them with it.
"""

import json
import os
import time

from .streams.spec import (
    DIGITS,
    CsvSpec,
    ReplaySpec,
    SeriesSpec,
    StreamError,
    StreamOpenError,
    StreamSpec,
    parse_stream,
)

_DIGITS_LABELS = frozenset(range(10))
_DIGITS_PARTS = 100
"""The bundled digits have more samples of each label than that."""


def check_stream(text: str) -> None:
    """Open and close the stream, where it is a file; call it before any thread is started.

    Raises:
        StreamError: It cannot be read: no such file, column or label.
    """
    spec = parse_stream(text)
    if not _doubtful(spec):
        return
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, json.dumps(_problem(spec)).encode())
        finally:
            # Nothing of the parent may run here: no handlers, no buffers.
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    # A child that was killed has said nothing: then the first order will tell.
    problem = json.loads(said) if said else None
    if problem is not None:
        raise StreamOpenError(*problem)


def _doubtful(spec: StreamSpec) -> bool:
    """Tell whether there is a file that could be missing, or a filter that fits nothing."""
    if isinstance(spec, ReplaySpec) and spec.dataset == DIGITS:
        return not _DIGITS_LABELS.issuperset(spec.labels) or spec.part[1] > _DIGITS_PARTS
    return isinstance(spec, ReplaySpec | SeriesSpec | CsvSpec)


def _problem(spec: StreamSpec) -> tuple[str, str, str] | None:
    """Return key, reason and hint, or None if the stream opens."""
    from .streams.open import create  # noqa: PLC0415 - numpy comes with it

    stream = create(spec, seed=0)
    try:
        stream.open(time.monotonic())
    except StreamError as error:
        return error.key, error.reason[:1000], error.hint[:1000]
    stream.close()
    return None
