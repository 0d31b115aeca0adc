"""A user's own stream: an entry point of the group ``fedagent.streams``.

The class is called with the text behind the colon. It has `open` and `take` as
`base.Stream` has them; `offset`, `counters` and `close` where it needs them. Whatever it
raises becomes a `StreamError` that names its place, never the text: that might quote a
sample.
"""

import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedagent_protocol.errors import PluginError, UnknownNameError
from fedagent_task.recipe.spec import DataSpec

from .base import Samples, Stream, StreamSchema
from .kinds import Own
from .spec import StreamError, registry

R = TypeVar("R")
_HINT = "fix the stream's class"


class OwnStream(Stream):
    """Keep a user's class within the bounds of a stream.

    The seed is given to it if it has an attribute ``seed``.
    """

    def __init__(self, spec: Own, *, seed: int, offset: int, mark: str, data: DataSpec) -> None:
        del offset, mark, data  # its labels are numbers, its position is its own affair
        super().__init__()
        self._spec, self._seed = spec, seed
        self._own: Any = None  # the user's object
        self._features = 0

    def open(self, now: float) -> StreamSchema:
        """Make the user's object, and open it.

        Raises:
            StreamError: The class cannot be loaded, or does not do what it must.
        """
        name = self._spec.kind
        try:
            factory: Callable[[str], object] = registry.factory(name)
        except UnknownNameError as error:
            hint = "install its package"
            raise StreamError(name, "is not installed any more", hint) from error
        except PluginError as error:
            raise StreamError(name, error.problem, _HINT) from error
        self._own = self._guarded(lambda: factory(self._spec.text))
        if hasattr(self._own, "seed"):
            self._own.seed = self._seed
        schema = self._guarded(lambda: self._own.open(now))
        if not isinstance(schema, StreamSchema) or schema.features < 1:
            raise StreamError(name, "open returns no StreamSchema", _HINT)
        self._features = schema.features
        return schema

    def take(self, now: float) -> Samples:
        """Return what the user's object gives, if it is samples; of too many, the newest.

        Raises:
            StreamError: It raised something, or gave something else.
        """
        samples = self._guarded(lambda: self._own.take(now))
        if not isinstance(samples, Samples) or not self._fits(samples):
            raise StreamError(
                self._spec.kind,
                f"take returns no Samples of {self._features} features with a label each",
                _HINT,
            )
        excess = len(samples) - self._spec.buffer
        if excess > 0:
            self._counters["dropped"] += excess
            samples = samples.rows(slice(excess, None))
        return samples

    @property
    def offset(self) -> int:
        """The object's own, as far as it has one."""
        found = getattr(self._own, "offset", 0)
        return found if isinstance(found, int) and found >= 0 else 0

    @property
    def counters(self) -> Mapping[str, int]:
        """The object's own, and ``dropped``: what was over the buffer."""
        found = getattr(self._own, "counters", {})
        own = found if isinstance(found, Mapping) else {}
        whole = {str(key)[:64]: n for key, n in own.items() if isinstance(n, int)}
        return Counter(whole) + self._counters

    def close(self) -> None:
        """Close the object, if it can be; what it raises by then is of no use to anybody."""
        own, self._own = self._own, None
        close = getattr(own, "close", None)
        if callable(close):
            with suppress(Exception):  # somebody else's code, at its end
                close()

    def _guarded(self, action: Callable[[], R]) -> R:
        try:
            return action()
        except StreamError:
            raise
        except Exception as error:  # somebody else's code: anything can come
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
            raise StreamError(self._spec.kind, where, _HINT) from error

    def _fits(self, samples: Samples) -> bool:
        x, y = samples.x, samples.y
        if not isinstance(y, np.ndarray) or y.ndim != 1 or y.dtype.kind not in "iuf":
            return False
        return x.ndim == 2 and x.shape == (len(y), self._features) and x.dtype.kind in "biuf"
