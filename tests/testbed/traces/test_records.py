"""Rates integrate, transfers invert the integral, matrices and prices are looked up."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fedagent_testbed.traces import RateTrace


def trace(times: list[float], bps: list[float]) -> RateTrace:
    return RateTrace(name="t", times_s=np.array(times), bps=np.array(bps))


@st.composite
def traces(draw: st.DrawFn) -> RateTrace:
    width = draw(st.lists(st.floats(0.01, 100), min_size=1, max_size=8))
    rate = st.one_of(st.just(0.0), st.floats(1e5, 1e7))
    bps = draw(st.lists(rate, min_size=len(width), max_size=len(width)))
    assume(any(bps))
    return trace([0.0, *np.cumsum(width).tolist()], bps)


def integral(link: RateTrace, start: float, seconds: float) -> float:
    """Walk interval by interval from `start`, asking only `rate_at` in their middles."""
    total, at, end = 0.0, start, start + seconds
    periods = range(math.floor(start / link.period_s), math.floor(end / link.period_s) + 1)
    cuts = [k * link.period_s + t for k in periods for t in link.times_s.tolist()]
    for cut in [*sorted(c for c in cuts if start < c < end), end]:
        total += float(link.rate_at((at + cut) / 2)) * (cut - at)
        at = cut
    return total


@settings(deadline=None)
@given(traces(), st.floats(0, 5), st.floats(0.001, 5))
def test_a_transfer_inverts_the_integral(link: RateTrace, starts: float, share: float) -> None:
    start = starts * link.period_s
    bits = share * float(link.bits[-1])
    seconds = float(link.seconds_for(bits, start))
    near = 1e-6 * float(link.bits[-1])
    assert integral(link, start, seconds) == pytest.approx(bits, rel=1e-6, abs=near)


@settings(deadline=None)
@given(traces(), st.floats(0, 1000), st.floats(0.001, 5))
def test_a_transfer_ends_with_its_last_bit(link: RateTrace, start: float, share: float) -> None:
    """A moment earlier it is not across: silence after the last bit does not count."""
    bits = share * float(link.bits[-1])
    seconds = float(link.seconds_for(bits, start))
    early = seconds * (1 - 1e-6) - 1e-6
    if early > 0:
        assert integral(link, start, early) < bits


@pytest.mark.parametrize(
    ("times", "bps"),
    [
        ([0.0], []),
        ([0.0, 1.0, 1.0], [1.0, 1.0]),
        ([0.0, math.inf], [1.0]),
        ([0.0, 1.0], [-1.0]),
        ([0.0, 1.0], [0.0]),
    ],
)
def test_impossible_traces_are_refused(times: list[float], bps: list[float]) -> None:
    with pytest.raises(ValueError, match=r"^t: "):
        trace(times, bps)
