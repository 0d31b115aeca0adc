"""Where an agent's samples come from: kinds of streams, found by the name before the colon.

A kind is a struct in `kinds`, a line in the registry and a module with its stream; the tables of
options in docs/recipe.md follow. Nothing of this imports numpy before a stream is opened.
"""

from typing import cast

from .kinds import Own
from .spec import EXAMPLES, StreamError, StreamSpec, no_kind, registry

__all__ = ["parse_stream", "registry"]


def parse_stream(text: str) -> StreamSpec:
    """Read the description of a stream.

    Raises:
        StreamError: It is none; names the part, and what to write instead.
    """
    if len(text) > 4096 or not text.isprintable():
        raise StreamError("stream", "is too long or not printable", f"write {EXAMPLES}")
    kind, _, rest = text.strip().partition(":")
    if kind in registry.builtin:
        return cast("type[StreamSpec]", registry.factory(kind)).read(kind, rest)
    if kind in registry.names():
        return Own(kind=kind, text=rest)
    raise no_kind(kind)
