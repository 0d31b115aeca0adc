"""What a device says of itself: free compute, availability, and its price."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.availability import Condition
from fedagent_agent.context import Context
from fedagent_agent.core.device import (
    MICRO,
    LinkQuality,
    PriceSettings,
)
from fedagent_agent.machine import MachineProbe
from fedagent_protocol.messages import MAX_MICRO

FREE_MEMORY = 1 << 30


class Scripted(MachineProbe):
    """A machine whose looks the test chooses."""

    def __init__(self, *samples: Condition) -> None:
        super().__init__()
        self.samples = list(samples)

    def cores(self) -> int:
        return 4

    def sample(self) -> Condition:
        return self.samples.pop(0)


def look(busy: float | None, own: float = 0.0, frequency: float = 1.0) -> Condition:
    return Condition(busy_s=busy, own_s=own, memory_bytes=FREE_MEMORY, frequency=frequency)


def test_what_others_use_is_not_available_and_what_we_use_is() -> None:
    context = Context(Scripted(look(0.0), look(20.0, 10.0)))
    assert context.read(0.0).compute == 4.0
    # 40 core-seconds passed, others took 10 of them.
    assert context.read(10.0).compute == pytest.approx(3.0)


@given(
    st.floats(0, MAX_MICRO / MICRO),
    st.floats(0, MAX_MICRO / MICRO),
    st.floats(0, 1e4),
    st.floats(0, 1e4),
)
def test_the_price_never_falls_with_more_compute(
    base: float, factor: float, one: float, other: float
) -> None:
    price = PriceSettings(base=base, per_compute=factor)
    assert price.micro(min(one, other)) <= price.micro(max(one, other)) <= MAX_MICRO


def test_measurements_are_smoothed_and_bounded() -> None:
    link = LinkQuality()
    link.note_download(10**6, 1.0)
    link.note_download(2 * 10**6, 1.0)
    assert link.download_bps == pytest.approx(8e6 + 0.3 * 8e6)
    link.note_upload(10**12, 0.0)
    assert link.upload_bps == 1e11
