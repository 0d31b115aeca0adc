"""Who is who in the demo; the same numbers give the same fleet."""

import itertools
import math
from collections import Counter
from dataclasses import dataclass

LABELS = 10
LABEL_SLOTS = 16
"""Labels held over all agents: two each for the eight of the default demo."""

RENT = 0.25
"""What the cheapest edge asks, as a share of what the devices of a round cost."""
STEP = 1.4
"""By how much each edge asks more than the one before it."""

BEYOND_S = 0.2
"""How far the slow agent's training goes beyond the deadline."""

EVERY_DIGIT = "all digits"
FEW_DIGITS = "one or two digits"
"""The kinds of clients in an evaluated demo."""
HELD_OUT = "digits:start=200"
"""What evaluated agents evaluate by: all digits, whatever their owners let them learn from."""
START, RATE = 200, 100.0
"""Samples that such an agent has at once, and more per second: an opinion must not be chance."""
TURN = math.pi * (3 - math.sqrt(5))
"""The golden angle: positions fill a disc evenly, whoever many there are."""
RADIUS_KM = 0.5


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One device of the demo.

    Attributes:
        start, rate: Samples at once, and more per second; 0 leaves it to the stream.
    """

    name: str
    labels: tuple[int, ...]
    price: float  # credits it asks for a round
    position_km: tuple[float, float]
    slow_s: float = 0.0  # extra seconds of training, beyond the deadline for the slow one
    kind: str = ""  # of a client, where the demo has several kinds; empty otherwise
    start: int = 0
    rate: float = 0.0
    held_out: str = ""  # a second stream that it only evaluates by; empty: it has none

    @property
    def stream(self) -> str:
        """Its stream, as `fedagent start --stream` takes it."""
        start = f",start={self.start}" if self.start else ""
        rate = f",rate={self.rate:g}" if self.rate else ""
        return f"digits:labels={'+'.join(map(str, self.labels))}{start}{rate}"

    @property
    def note(self) -> str:
        """What is to be known of it, for people."""
        held = self.kind if len(self.labels) == LABELS and self.kind else ""
        held = held or f"digits {' '.join(map(str, self.labels))}"
        return f"{held}, asks {self.price:g}{', slow' if self.slow_s else ''}"

    def settings(self) -> dict[str, object]:
        """Return its settings, as an agent's configuration takes them."""
        made: dict[str, object] = {
            "stream": self.stream,
            "price": {"base": self.price, "per_compute": 0.0},
            "slow_s": self.slow_s,
            "position": list(self.position_km),
        }
        if self.held_out:
            made["held_out"] = self.held_out
        return made


@dataclass(frozen=True, slots=True)
class Plan:
    """The fleet of a demo.

    Attributes:
        rents: Credits that each edge asks for a round, in a placed run; 0 each otherwise.
        victim, slow: The agent that is killed half way, and the one that misses the deadline;
            empty when nobody can be spared.
    """

    agents: tuple[AgentPlan, ...]
    edges: tuple[str, ...]
    budget: float  # credits that one edge may spend on devices in a round
    rents: tuple[float, ...]
    victim: str = ""
    slow: str = ""


def make_plan(*, agents: int, edges: int, deadline_s: float, placed: bool = False) -> Plan:
    """Return the fleet: every label stays held when the victim and the slow one are out.

    The budget lets about six of eight agents train in a round, over all edges; in a placed
    run at the one that is rented, and each edge asks more rent than the one before it.
    """
    labels = deal_labels(agents)
    prices = _prices(agents)
    slow, victim = _spared(labels)
    made = tuple(
        AgentPlan(
            name=f"agent-{i + 1}",
            labels=labels[i],
            price=prices[i],
            slow_s=round(deadline_s + BEYOND_S, 3) if i == slow else 0.0,
            position_km=_position(i, agents),
        )
        for i in range(agents)
    )
    # Three quarters of them, whoever they are: prices must not decide for good who trains.
    share = math.ceil(agents * 0.75 / (1 if placed else edges)) * max(prices)
    rents = [round(share * RENT * STEP**i, 3) for i in range(edges)] if placed else [0.0] * edges
    return Plan(
        agents=made,
        edges=_edge_names(edges),
        budget=round(share, 3),
        rents=tuple(rents),
        victim="" if victim is None else made[victim].name,
        slow="" if slow is None else made[slow].name,
    )


def make_evaluated_plan(*, agents: int, edges: int, best: int) -> Plan:
    """Return the fleet of a recipe by which clients evaluate the model.

    One agent more than trains in a round learns from all ten digits, the others from one or
    two each; all evaluate by every digit. Nobody is slow or killed: how often each was chosen
    is to be read off. The budget pays `best` agents over all edges.
    """
    whole = min(best + 1, agents)
    prices = _prices(agents)
    hands = [tuple(range(LABELS))] * whole + deal_few(agents - whole)
    made = tuple(
        AgentPlan(
            name=f"agent-{i + 1}",
            labels=hand,
            price=prices[i],
            kind=EVERY_DIGIT if i < whole else FEW_DIGITS,
            start=START,
            rate=RATE,
            position_km=_position(i, agents),
            held_out=HELD_OUT,
        )
        for i, hand in enumerate(hands)
    )
    share = math.ceil(best / edges) * max(prices)
    rents = (0.0,) * edges
    return Plan(agents=made, edges=_edge_names(edges), budget=round(share, 3), rents=rents)


def deal_labels(agents: int) -> list[tuple[int, ...]]:
    """Deal the ten labels in laps, each lap shifted by one, two or more to an agent."""
    each = min(LABELS, max(2, math.ceil(LABEL_SLOTS / agents)))
    laps = ((start + i) % LABELS for start in itertools.count() for i in range(LABELS))
    hands = []
    for _ in range(agents):
        hand: dict[int, None] = {}
        while len(hand) < each:
            hand[next(laps)] = None
        hands.append(tuple(sorted(hand)))
    return hands


def deal_few(agents: int) -> list[tuple[int, ...]]:
    """Deal two labels and one label in turns, lap after lap."""
    laps = itertools.cycle(range(LABELS))
    return [tuple(sorted(next(laps) for _ in range(2 - i % 2))) for i in range(agents)]


def _prices(agents: int) -> list[float]:
    return [round(1.0 + 0.2 * (i % 5) / 4, 3) for i in range(agents)]


def _edge_names(edges: int) -> tuple[str, ...]:
    return tuple(f"edge-{i + 1}" for i in range(edges))


def _position(index: int, count: int) -> tuple[float, float]:
    """Return the place of one of `count` on a disc, in kilometres from its lower left."""
    out, angle = RADIUS_KM * math.sqrt((index + 0.5) / count), TURN * index
    x, y = (round(RADIUS_KM + out * part(angle), 3) for part in (math.cos, math.sin))
    return x, y


def _spared(labels: list[tuple[int, ...]]) -> tuple[int | None, int | None]:
    held = Counter(label for hand in labels for label in hand)
    spare = {
        i for i, hand in enumerate(labels) if len(labels) > 1 and all(held[x] > 1 for x in hand)
    }
    for slow, victim in itertools.permutations(sorted(spare), 2):
        both = Counter(labels[slow] + labels[victim])
        if slow < victim and all(held[x] > both[x] for x in both):
            return slow, victim
    return (min(spare), None) if spare else (None, None)
