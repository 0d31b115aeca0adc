"""A device behind a slow link, over real brokers; in virtual time: `tests/world/test_links.py`."""

from pathlib import Path

import pytest

from tests.documents.machines import lan, why_not
from tests.netns.test_loss import BOX, COORDINATOR, DEVICE, EDGE, FAR, NEAR

pytestmark = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]


@pytest.mark.parametrize("rate", ["5mbit", "1mbit", "256kbit"])
def test_it_is_not_lost_and_gets_no_byte_twice(tmp_path: Path, rate: str) -> None:
    with lan(tmp_path, BOX, DEVICE) as (box, device):
        device.carries(rate)
        patient = "--set rounds.count=1 --set rounds.deadline_s=120 --set rounds.max_wait_s=120"
        coordinator = box.opens(f"{COORDINATOR} {patient} --set rounds.min_updates=2")
        box.opens(EDGE).until("edge ready")
        box.opens(NEAR)
        far = device.opens(FAR)
        coordinator.until('"used":2')
        assert device.received <= 1.2 * 4 * 10 * 20_000
        assert "lost edge" not in far.shown
