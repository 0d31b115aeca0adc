"""A token bucket gives no more than it may, whatever the clock does."""

from hypothesis import given
from hypothesis import strategies as st

from fedagent_protocol.bucket import TokenBucket


@given(st.lists(st.floats(-5.0, 5.0), min_size=1, max_size=200), st.integers(1, 5))
def test_it_gives_no_more_than_its_size_and_what_came_in_time(
    steps: list[float], size: int
) -> None:
    bucket, now, forward, taken = TokenBucket(size, 0.5), 0.0, 0.0, 0
    for n, step in enumerate(steps):
        now += step
        forward += max(0.0, step) if n else 0.0
        taken += bucket.take(now)
        assert taken <= size + 0.5 * forward + 1e-9
