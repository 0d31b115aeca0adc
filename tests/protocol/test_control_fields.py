"""Golden bytes of messages with the fields that came for placed and controlled rounds.

The bytes without them are those of `test_codec`: a default is never sent.
"""

from pathlib import Path

import msgspec
import pytest

from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction, decode, encode

from .samples import SAMPLES

GOLDEN = Path(__file__).parent / "golden"
_MORE: dict[type[m.AnyMessage], dict[str, object]] = {
    m.UpdateOffer: {"train_ms": 280, "steps": 5, "limited": True},
    m.TrainOrder: {"load_limit_ms": 1300},
    m.EdgeHello: {"rent": 250_000},
    m.EdgeStatus: {"rent": 250_000},
    m.RoundOrder: {"load_limit_ms": 1300},
}


def extended() -> list[tuple[Direction, m.AnyMessage]]:
    """Return the samples that have new fields, with these set."""
    found: list[tuple[Direction, m.AnyMessage]] = []
    for direction, messages in SAMPLES.items():
        for message in messages:
            if isinstance(message, m.RoundReport):
                outcomes = tuple(
                    msgspec.structs.replace(one, train_ms=280, iterations=7, steps=5, limited=True)
                    for one in message.outcomes
                )
                found.append((direction, msgspec.structs.replace(message, outcomes=outcomes)))
            elif type(message) in _MORE:
                more = _MORE[type(message)]
                found.append((direction, msgspec.structs.replace(message, **more)))
    return found


CASES = extended()


@pytest.mark.parametrize(
    ("direction", "message"), CASES, ids=[f"{d.value}.{m.kind(x)}" for d, x in CASES]
)
def test_the_bytes_with_control_fields_never_change(
    direction: Direction, message: m.AnyMessage
) -> None:
    path = GOLDEN / f"{direction.value}.{m.kind(message)}.control.msgpack"
    assert path.read_bytes() == encode(message), "released bytes changed: add fields, never retype"
    assert decode(direction, encode(message)) == message


def test_a_peer_of_before_reads_them_as_not_said() -> None:
    for direction, message in CASES:
        plain = decode(
            direction, (GOLDEN / f"{direction.value}.{m.kind(message)}.msgpack").read_bytes()
        )
        assert type(plain) is type(message)
        assert plain != message


def test_every_case_is_there() -> None:
    assert len(CASES) == len(_MORE) + 1
