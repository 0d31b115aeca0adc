"""Enough shares give the secret, fewer give nothing of it."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_task.secure_aggregation import shamir


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(1, 20), st.data())
def test_any_set_that_is_large_enough_gives_the_secret(
    secret: bytes, count: int, data: st.DataObject
) -> None:
    needed = data.draw(st.integers(1, count))
    shares = shamir.split(secret, count, needed)
    taken = data.draw(st.integers(needed, count))
    places = data.draw(st.permutations(range(1, count + 1)))[:taken]
    assert shamir.join({place: shares[place - 1] for place in places}) == secret


@settings(max_examples=25, deadline=None)
@given(st.binary(min_size=32, max_size=32), st.integers(2, 12))
def test_one_share_too_few_gives_something_else(secret: bytes, needed: int) -> None:
    shares = shamir.split(secret, needed, needed)
    fewer = {place: shares[place - 1] for place in range(2, needed + 1)}
    with suppress(ValueError):
        assert shamir.join(fewer) != secret


def test_what_is_no_share_is_refused() -> None:
    with pytest.raises(ValueError, match="no number of the field"):
        shamir.join({1: b"\xff" * shamir.SHARE_BYTES})
    with pytest.raises(ValueError, match="do not belong together"):
        shamir.join({1: (shamir.PRIME - 1).to_bytes(shamir.SHARE_BYTES)})
