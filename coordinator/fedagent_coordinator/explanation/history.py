"""What became of the orders of a device, in words."""

from collections import Counter
from collections.abc import Sequence

from .account import Ended

_LEAST = 3
"""Orders without a delivery from which a device is said never to deliver."""
WORDS = {
    "arrived": "in time",
    "late": "late",
    "missed": "nothing arrived",
    "declined": "declined",
    "rejected": "refused as invalid",
    "gone": "left its edge",
    "void": "voided with the round",
    "open": "in progress",
}


def never_delivers(ordered: int, in_time: int, orders: Sequence[Ended]) -> bool:
    """Return whether a device was ordered often, and came in time never."""
    over = sum(one.status not in {"open", "void"} for one in orders)
    return in_time == 0 and min(ordered, over) >= _LEAST


def told(ordered: int, in_time: int, orders: Sequence[Ended]) -> list[str]:
    """Return a sentence on how its orders ended."""
    if not ordered:
        return ["it was never ordered"]
    ends = Counter(WORDS.get(one.status, one.status) for one in orders)
    several = ", ".join(f"{count} {word}" for word, count in ends.most_common())
    said = f"ordered in {ordered} round{'s' if ordered > 1 else ''}, in time in {in_time}"
    given = [f"{said} ({several})" if len(ends) > 1 or not in_time else said]
    reasons = Counter(one.reason for one in orders if one.reason)
    if not in_time and reasons:
        given.append(f"most often: {reasons.most_common(1)[0][0]}")
    return given
