"""Where an agent's samples come from: kinds of streams, found by the name before the colon.

A kind is a module with its struct (`spec.StreamSpec`) and a line in `kinds`; the tables of options
in docs/recipe.md follow. Nothing of this imports numpy before a stream is opened.
"""

from typing import cast

from .base import StreamSpecError
from .kinds import registry
from .own import Own
from .spec import EXAMPLES, StreamSpec, no_kind

__all__ = ["parse_stream", "registry"]


def parse_stream(text: str) -> StreamSpec:
    """Read the description of a stream.

    Raises:
        StreamSpecError: It is none; names the part, and what to write instead.
    """
    if len(text) > 4096 or not text.isprintable():
        raise StreamSpecError("stream", "is too long or not printable", f"write {EXAMPLES}")
    kind, _, rest = text.strip().partition(":")
    if kind in registry.builtin:
        return cast("type[StreamSpec]", registry.factory(kind)).read(kind, rest)
    if kind in registry.names():
        return Own(kind=kind, text=rest)
    raise no_kind(kind)
