"""What a run came to, in words."""

import pytest

from fedagent_coordinator.picture.summary import conclusion


@pytest.mark.parametrize(
    ("placed", "rent_micro", "what"),
    [(True, 5, "rented round"), (True, 0, "round"), (False, 0, "update")],
)
def test_the_line_says_what_the_budget_does_not_pay(
    what: str, rent_micro: int, *, placed: bool
) -> None:
    line = conclusion("budget", placed=placed, rent_micro=rent_micro, rounds_done=4, model="ab")
    assert (
        line == f"the budget is too low for another {what}: stopped after 4 rounds, final model ab"
    )


def test_other_ends_need_no_words() -> None:
    assert not conclusion("rounds", placed=True, rent_micro=5, rounds_done=4, model="ab")
