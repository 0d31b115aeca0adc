"""What tests of streams share."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import strategies as st

from fedagent_agent.streams.base import Samples, Stream

STEPS = st.lists(st.floats(0, 30), max_size=12)


def dense(samples: Samples) -> npt.NDArray[np.generic]:
    """Return features that are no sparse rows."""
    assert isinstance(samples.x, np.ndarray)
    return samples.x


def install_stream(monkeypatch: pytest.MonkeyPatch, name: str, kind: type) -> None:
    """Let a class be somebody's entry point of `fedagent.streams`."""

    class Point:
        value = "package:Class"

        def load(self) -> type:
            return kind

    Point.name = name  # type: ignore[attr-defined]  # an entry point has one
    monkeypatch.setattr("fedagent_protocol.registry.installed", lambda _group: (Point(),))


def taken_after(stream: Stream, steps: Sequence[float]) -> int:
    """Open a stream, and return how many samples came at these steps of time."""
    stream.open(0.0)
    now, taken = 0.0, 0
    for step in steps:
        now += step
        taken += len(stream.take(now))
    return taken
