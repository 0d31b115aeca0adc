"""A dealer's word against a holder's: whether a share opens, the edge cannot see.

Two honest devices never contradict each other, so one of the two lies, or both. They are in no
masks together any more: until it is known who, they take turns. Who contradicts a second device is
barred. So each round that is void for such shares brings one liar closer to its bar, and a liar
alone bars nobody else; docs/privacy.md has the bound.
"""

from collections import Counter
from collections.abc import Collection, Iterable

from msgspec import Struct
from msgspec.structs import replace

MOST_TURNS = 2**30
"""More is counted as this."""


class Suspects(Struct, frozen=True, kw_only=True):
    """Two devices of whom one lies, at least.

    Attributes:
        dealer: Who dealt the share.
        holder: Who says that it does not open.
        dealer_turns: What the dealer's rounds without the holder count; void ones double it.
        holder_turns: The same of the holder's.
    """

    dealer: str
    holder: str
    dealer_turns: int = 0
    holder_turns: int = 0

    @property
    def both(self) -> frozenset[str]:
        """The two devices."""
        return frozenset((self.dealer, self.holder))

    @property
    def rests(self) -> str:
        """Who sits out the next round that both are ordered for."""
        return self.dealer if self.dealer_turns >= self.holder_turns else self.holder

    def after(self, *, void: bool) -> "Suspects":
        """Return the pair after a round without the one that rests.

        Who is there when rounds come to nothing is there less and less often: it may be the liar,
        and all that it can do in its turns is to stay away.
        """
        if self.rests == self.dealer:
            return replace(self, holder_turns=_counted(self.holder_turns, void))
        return replace(self, dealer_turns=_counted(self.dealer_turns, void))


def _counted(turns: int, void: bool) -> int:
    return min(turns * (1 + void) + 1, MOST_TURNS)


def disjoint(pairs: Iterable[tuple[str, str]], but: Collection[str]) -> tuple[Suspects, ...]:
    """Return as many (dealer, holder) as have no device in common, nor any of `but`.

    Else one liar could bring many others under suspicion by one round.
    """
    found: list[Suspects] = []
    taken = set(but)
    for dealer, holder in sorted(pairs):
        if taken.isdisjoint((dealer, holder)):
            found.append(Suspects(dealer=dealer, holder=holder))
            taken |= {dealer, holder}
    return tuple(found)


def second_time(earlier: Iterable[Suspects], now: Iterable[Suspects]) -> frozenset[str]:
    """Return who of the suspects of now has contradicted another device before.

    That device is another, since two who contradicted each other are in no masks together.
    """
    times = Counter(agent for pair in earlier for agent in pair.both)
    return frozenset(agent for pair in now for agent in pair.both if times[agent])


def taking_turns(
    pairs: Iterable[Suspects], ordered: Collection[str], barred: Collection[str]
) -> tuple[Suspects, ...]:
    """Return the pairs of which both are ordered for a round, and neither is barred."""
    there = frozenset(ordered) - frozenset(barred)
    return tuple(pair for pair in pairs if pair.both <= there)
