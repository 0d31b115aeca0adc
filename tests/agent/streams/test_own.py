"""A user's own stream: the documented example, and classes that do what they must not."""

from typing import ClassVar

import numpy as np
import pytest

from fedagent_agent.streams.base import Samples, Stream, StreamSchema
from fedagent_agent.streams.kinds import Own
from fedagent_agent.streams.spec import StreamError

from .support import install_stream


class Good:
    """Two samples at every take; the base of those that do it wrong."""

    x: ClassVar[object] = np.ones((2, 3))
    y: ClassVar[object] = np.zeros(2)

    def __init__(self, text: str) -> None:
        self.text = text

    def open(self, now: float) -> object:
        return StreamSchema(3)

    def take(self, now: float) -> object:
        return Samples(self.x, self.y)  # type: ignore[arg-type]  # wrong on purpose, below


def _own(monkeypatch: pytest.MonkeyPatch, kind: type, buffer: int = 4096) -> Stream:
    install_stream(monkeypatch, "mine", kind)
    return Own(kind="mine", text="secret", buffer=buffer).create(seed=1, offset=4)


def test_too_many_samples_are_dropped_oldest_first_and_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Gush(Good):
        x = np.arange(30.0).reshape(10, 3)
        y = np.arange(10.0)
        counters: ClassVar[dict[str, int]] = {"broken_cable": 2}

    stream = _own(monkeypatch, Gush, buffer=4)
    stream.open(0.0)
    assert stream.take(0.0).y.tolist() == [6, 7, 8, 9]
    assert stream.counters == {"dropped": 6, "broken_cable": 2}


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.ones((2, 4)), np.zeros(2)),
        (np.ones((3, 3)), np.zeros(2)),
        (np.array([["a"] * 3] * 2), np.zeros(2)),
        (np.ones((2, 3)), np.array(["a", "b"])),
        (np.ones((2, 3)), [0, 1]),
    ],
)
def test_what_are_no_samples_is_said(monkeypatch: pytest.MonkeyPatch, x: object, y: object) -> None:
    kind = type("Wrong", (Good,), {"x": x, "y": y})
    stream = _own(monkeypatch, kind)
    stream.open(0.0)
    with pytest.raises(StreamError, match=r"mine: take returns no Samples of 3 features"):
        stream.take(0.0)


def test_errors_of_the_class_are_typed_and_tell_no_sample(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Raises(Good):
        def take(self, now: float) -> object:
            raise ValueError("could not read 'secret sample'")

    stream = _own(monkeypatch, Raises)
    stream.open(0.0)
    with pytest.raises(StreamError) as caught:
        stream.take(0.0)
    assert str(caught.value).startswith("mine: ValueError at test_own.py:")
    assert "secret" not in str(caught.value)


def test_a_class_that_cannot_be_made_or_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoOpen:
        def __init__(self, text: str) -> None:
            pass

    class NoSchema(Good):
        def open(self, now: float) -> object:
            return 3

    with pytest.raises(StreamError, match="mine: TypeError"):
        _own(monkeypatch, type("NoText", (), {"open": lambda _self, _now: None})).open(0.0)
    with pytest.raises(StreamError, match="mine: AttributeError"):
        _own(monkeypatch, NoOpen).open(0.0)
    with pytest.raises(StreamError, match="mine: open returns no StreamSchema"):
        _own(monkeypatch, NoSchema).open(0.0)
    with pytest.raises(StreamError, match="not installed"):
        Own(kind="nobodys", text="").create(seed=1).open(0.0)
