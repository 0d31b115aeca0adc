"""How many rounds devices that lie can void by their word against others', whatever they do."""

from itertools import permutations
from math import floor, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_task.secure_aggregation.suspicion import (
    Suspects,
    disjoint,
    second_time,
    taking_turns,
)

DEVICES = "abcdefgh"
PAIR = Suspects(dealer="a", holder="b")


class Edge:
    """Rounds of all devices, one after the other, as an edge remembers them."""

    def __init__(self) -> None:
        self.pairs: tuple[Suspects, ...] = ()
        self.barred: frozenset[str] = frozenset()

    @property
    def resting(self) -> frozenset[str]:
        return frozenset(p.rests for p in taking_turns(self.pairs, DEVICES, self.barred))

    def round(self, said: set[tuple[str, str]]) -> None:
        turns = taking_turns(self.pairs, DEVICES, self.barred)
        new = disjoint(said, ())
        self.barred |= second_time(self.pairs, new)
        self.pairs = tuple(p.after(void=bool(said)) if p in turns else p for p in self.pairs) + new


@given(st.data(), st.integers(1, 4))
def test_liars_void_two_rounds_each_and_bar_no_more_others_than_they_are(
    data: st.DataObject, count: int
) -> None:
    edge, liars, void = Edge(), frozenset(DEVICES[:count]), 0
    for _ in range(40):
        there = sorted(set(DEVICES) - edge.barred - edge.resting)
        lies = [pair for pair in permutations(there, 2) if liars & set(pair)]
        said = data.draw(st.sets(st.sampled_from(lies), max_size=12)) if lies else set()
        void += bool(said)
        edge.round(said)
    assert void <= 2 * count
    others = edge.barred - liars
    assert len(others) <= count
    assert count > 1 or not others


@pytest.mark.parametrize("rounds", [1, 10, 100, 1000])
@pytest.mark.parametrize("liar", ["a", "b"])
def test_who_stays_away_in_its_turns_has_ever_fewer(rounds: int, liar: str) -> None:
    """Where nobody is to spare its absence voids the round, and is no lie."""
    pair, void = PAIR, 0
    for _ in range(rounds):
        away = pair.rests != liar
        void += away
        pair = pair.after(void=away)
    assert void <= floor(log2(rounds + 1)) + 1


def test_one_round_makes_no_device_a_suspect_twice() -> None:
    found = disjoint([("a", "b"), ("a", "c"), ("d", "c"), ("e", "f")], but="f")
    assert [tuple(sorted(pair.both)) for pair in found] == [("a", "b"), ("c", "d")]
