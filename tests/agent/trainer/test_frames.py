"""Frames between agent and trainer: limits first, typed errors for any bytes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.trainer import frames as fr

REQUESTS: list[fr.Request] = [
    fr.Open(job=1, task=b"x" * 65_536, stream="digits", seed=7, offset=9, slow_s=0.5),
    fr.Train(job=2, model="/m", out="/o", iterations=3),
    fr.Cancel(job=2),
]


@given(st.lists(st.integers(1, 50_000), max_size=20))
def test_frames_survive_any_cutting(cuts: list[int]) -> None:
    data = b"".join(fr.encode_frame(request) for request in REQUESTS)
    buffer, frames = fr.FrameBuffer(), []
    for cut in [*cuts, len(data)]:
        frames += buffer.feed(data[:cut])
        data = data[cut:]
    assert [fr.decode_request(body) for body in frames] == REQUESTS


def test_a_frame_over_the_limit_is_refused_on_both_sides() -> None:
    with pytest.raises(fr.FrameError):
        fr.encode_frame(fr.Open(job=1, task=b"x" * fr.MAX_FRAME_BYTES, stream="", seed=0))
    with pytest.raises(fr.FrameError):
        fr.FrameBuffer().feed((fr.MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


@given(st.binary(max_size=200))
def test_any_bytes_are_a_frame_or_a_typed_error(data: bytes) -> None:
    for decode in (fr.decode_request, fr.decode_reply):
        try:
            decode(data)
        except fr.FrameError as error:
            assert str(error)
