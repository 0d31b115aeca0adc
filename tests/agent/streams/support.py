"""What tests of streams share."""

import numpy as np
import numpy.typing as npt
import pytest

from fedagent_agent.streams.base import Samples


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
