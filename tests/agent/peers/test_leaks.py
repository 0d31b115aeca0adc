"""The search for what must not leave a device; `tests/world/test_neighbours.py` searches runs."""

import base64
import json
import struct

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from tests.fakes.leak_search import Search, says, trivial

SCORES = st.floats(0.001, 2.0).filter(lambda value: trivial(value) is None)


def searched(*values: float) -> Search:
    search = Search()
    for n, value in enumerate(values):
        search.add(value, f"canary {n}")
    return search


@given(value=SCORES, before=st.binary(max_size=20), after=st.binary(max_size=20))
@example(value=0.7351234567, before=b"", after=b"")
def test_every_encoding_is_found(value: float, before: bytes, after: bytes) -> None:
    search = searched(value)
    for kind in ("<d", ">d", "<f", ">f"):
        raw = struct.pack(kind, value)
        for data in (raw, raw.hex().encode(), raw.hex().upper().encode()):
            assert search.look("here", before + data + after)
        assert search.look("here", base64.b64encode(before + raw + after))
    columns = np.array([1.0, value, 3.0])
    assert search.look("here", columns.astype("<f4").tobytes())
    for text in (repr(value), f"{value:.6e}", f"{value:.8f}", json.dumps({"score": value})):
        if sum(c.isdigit() for c in text.partition("e")[0].lstrip("0.")) >= 6:
            assert search.look("here", text.encode()), text


def test_text_of_six_digits_is_found_rounded_and_cut_and_of_five_it_is_not() -> None:
    value = 0.73519968
    assert all(says(float(text), 6, value) for text in ("0.735199", "0.735200"))
    assert not says(0.735201, 6, value)
    search = searched(value)
    assert search.look("log", b"score=0.735199 of the model")
    assert search.look("log", b'{"x":7.35199e-1}')
    assert search.look("log", repr(float(np.float32(value))).encode())
    assert not search.look("log", b"0.7352 and 0.73519")
    assert not search.look("log", b"10.735199 1.7351996 0x0.735199a")
