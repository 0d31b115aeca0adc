"""The field runs: separate processes find each other and train, with no address typed."""

from pathlib import Path

import pytest

from .support import (
    BROKERS,
    check_books,
    new_field,
    start_small,
)


@pytest.mark.parametrize("broker", BROKERS)
def test_roles_find_each_other_by_zeroconf_and_train(tmp_path: Path, broker: str) -> None:
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=6, edges=2, agents=4, broker=broker)
        end = coordinator.wait("end")
        assert end["rounds_done"] == 6
        assert end["ledger_balanced"] is True
        assert float(str(end["accuracy"])) > 0.3
        assert coordinator.wait_exit() == 0
        assert sum(int(str(e["in_time"])) for e in coordinator.all("round")) >= 6
    check_books(coordinator)
