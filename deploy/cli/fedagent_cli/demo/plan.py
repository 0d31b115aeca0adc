"""Who is who in the demo, checked before anything starts; the same wishes give the same fleet."""

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedagent_cli import places
from fedagent_cli.errors import UsageError
from fedagent_coordinator import policies
from fedagent_coordinator.policies.base import OPINIONS
from fedagent_task.recipe.files import open_recipe
from fedagent_task.recipe.spec import Recipe
from fedagent_testbed.local_fleet import Fleet

LABELS = 10
LABEL_SLOTS = 16
"""Labels held over all agents: two each for the eight of the default demo."""
DIGITS = (64, LABELS)
"""Features and classes of the bundled digits."""

AGENTS, EDGES = 8, 2
EVALUATORS = 10
"""Agents where they evaluate the model."""
BEST = 2
"""Who trains in a round of a recipe that calls for opinions and does not say how many."""
PEER_EDGES = 1
"""Neighbours are of one edge: with more of them there would be as many circles."""
PLACED_EDGES = 3
"""A placed run needs some edges to choose from."""

RENT = 0.25
"""What the cheapest edge asks, as a share of what the devices of a round cost."""
STEP = 1.4
"""By how much each edge asks more than the one before it."""
BEYOND_S = 0.2
"""How far the slow agent's training goes beyond the deadline."""
TURN = math.pi * (3 - math.sqrt(5))
"""The golden angle: any number of positions fills a disc evenly."""
RADIUS_KM = 0.5

EVERY_DIGIT, FEW_DIGITS = "all digits", "one or two digits"
"""The kinds of clients where they evaluate the model."""
EVALUATES = ",start=200,rate=100"
"""Samples that such an agent has at once, and more per second: an opinion must not be chance."""
HELD_OUT = "digits:start=200"
"""What it evaluates by: all digits, whatever its owner lets it learn from."""


@dataclass(frozen=True, slots=True)
class AgentPlan:
    """One device of the demo."""

    name: str
    labels: tuple[int, ...]
    price: float  # credits it asks for a round
    position_km: tuple[float, float]
    slow_s: float = 0.0  # extra seconds of training, beyond the deadline for the slow one
    kind: str = ""  # of a client that evaluates the model; empty where none does

    @property
    def note(self) -> str:
        """What is to be known of it, for people."""
        held = f"digits {' '.join(map(str, self.labels))}"
        held = self.kind if self.kind == EVERY_DIGIT else held
        return f"{held}, asks {self.price:g}{', slow' if self.slow_s else ''}"

    def settings(self) -> dict[str, object]:
        """Return its settings, as an agent's configuration takes them."""
        stream = f"digits:labels={'+'.join(map(str, self.labels))}"
        made: dict[str, object] = {
            "stream": f"{stream}{EVALUATES if self.kind else ''}",
            "price": {"base": self.price, "per_compute": 0.0},
            "slow_s": self.slow_s,
            "position": list(self.position_km),
        }
        return made | ({"held_out": HELD_OUT} if self.kind else {})


@dataclass(frozen=True, slots=True)
class Plan:
    """The fleet: one agent is killed half way, one misses the deadline, if they can be spared."""

    agents: tuple[AgentPlan, ...]
    edges: Mapping[str, float]  # what each asks as its rent, by name; 0 where none is rented
    budget: float  # credits that one edge may spend on devices in a round
    victim: str = ""
    slow: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo(Fleet):
    """What the demo starts."""

    plan: Plan
    rounds: int


def prepare(
    *,
    agents: int | None,
    edges: int | None,
    rounds: int | None,
    policy: str | None,
    seed: int | None,
    recipe: str,
    folder: Path | None,
    web: bool = False,
) -> Demo:
    """Return what is to be started, and make the demo's folder.

    Raises:
        UsageError: Something does not fit; the line names what does.
    """
    path = places.find_recipe(recipe)
    bundled = path.parent == places.bundled("recipes")
    read, sets = _read(path, rounds, policy, bundled=bundled)
    if (read.model.features, read.model.outputs) != DIGITS:
        takes = f"{read.model.features} features and {read.model.outputs} classes"
        raise UsageError(
            f"{path.name} does not fit the bundled digits: it takes {takes}",
            "use --recipe demo, or your own data from Python: fedagent.run_local",
        )
    plan = make_plan(read, agents, edges)
    # Bundled recipes leave the budget to the fleet; a person's own says what it means.
    budget = (f"budget.per_edge={plan.budget}",) if bundled else ()
    return Demo(
        recipe=path,
        sets=(*sets, *budget),
        seed=read.seed if seed is None else seed,
        directory=places.empty_folder(
            folder or places.dated("fedagent-demo"), hint="name another folder with --dir"
        ),
        agents={agent.name: agent.settings() for agent in plan.agents},
        edges={name: {"rent": rent} if rent else {} for name, rent in plan.edges.items()},
        max_wait_s=read.rounds.max_wait_s,
        web=web,
        plan=plan,
        rounds=read.rounds.count,
    )


def _read(
    path: Path, rounds: int | None, policy: str | None, *, bundled: bool
) -> tuple[Recipe, list[str]]:
    """Return the recipe with what the demo changes in it, and these overrides."""
    sets = [] if rounds is None else [f"rounds.count={rounds}"]
    read = open_recipe(path, sets).recipe
    if policy not in (None, read.policy.name):
        sets += [f"policy.name={policy}", f"policy.params={_carried(read, policy)}"]
        read = open_recipe(path, sets).recipe
        if _needs_opinions(read):  # which are there after a merge only
            sets.append("rounds.merge_every=1")
    if read.rounds.every_s and bundled:  # nobody watches a demo's schedule
        sets.append("rounds.every_s=0")
    read = open_recipe(path, sets).recipe
    if read.rounds.count == 0:
        raise UsageError(f"{path.name} sets no number of rounds", "add --rounds N")
    return read, sets


def _needs_opinions(recipe: Recipe) -> bool:
    return OPINIONS in policies.create(recipe.policy.name, **recipe.policy.params).needs


def _carried(recipe: Recipe, policy: str | None) -> str:
    """Return the parameters that another policy takes over, as TOML: how many train at most.

    The others are the recipe's policy's own. How many train stays, because the budget is
    made for it: policies over sets learn only from sets that were paid whole.
    """
    size = recipe.policy.params.get("clients_per_round")
    takes = policy is not None and "clients_per_round" in policies.parameters(policy)
    return f"{{ clients_per_round = {size} }}" if takes and isinstance(size, int) else "{}"


def make_plan(recipe: Recipe, agents: int | None = None, edges: int | None = None) -> Plan:
    """Return the fleet for a recipe.

    Every label stays held when the victim and the slow one are out. The budget lets about six of
    eight agents train in a round, over all edges; in a placed run at the one that is rented.

    Where clients evaluate the model, one agent more than trains in a round learns from all ten
    digits, the others from one or two each; all evaluate by every digit. Nobody is slow or
    killed: how often each was chosen is to be read off.
    """
    placed, mode = recipe.placement.rents, recipe.opinions.mode
    evaluated = not placed and mode in ("report", "peers")
    count = agents or (EVALUATORS if evaluated else AGENTS)
    usual = PLACED_EDGES if placed else PEER_EDGES if mode == "peers" else EDGES
    number = edges or usual
    prices = [round(1.0 + 0.2 * (i % 5) / 4, 3) for i in range(count)]
    whole, spared = 0, ["", ""]
    if evaluated:
        named = recipe.policy.params.get("clients_per_round")
        paid = recipe.peers.best if mode == "peers" else named if isinstance(named, int) else BEST
        whole = min(paid + 1, count)
        few = deal_labels(2 - i % 2 for i in range(count - whole))
        hands = [tuple(range(LABELS))] * whole + few
    else:
        # Three quarters of them, whoever they are: prices must not decide for good who trains.
        paid = math.ceil(count * 0.75)
        hands = deal_labels([min(LABELS, max(2, math.ceil(LABEL_SLOTS / count)))] * count)
        spared = [f"agent-{i + 1}" for i in _spared(hands)] + spared
    slow, victim = spared[:2]
    share = math.ceil(paid / (1 if placed else number)) * max(prices)
    return Plan(
        agents=tuple(
            AgentPlan(
                name=(name := f"agent-{i + 1}"),
                labels=hands[i],
                price=prices[i],
                position_km=_position(i, count),
                slow_s=round(recipe.rounds.deadline_s + BEYOND_S, 3) if name == slow else 0.0,
                kind=(EVERY_DIGIT if i < whole else FEW_DIGITS) if evaluated else "",
            )
            for i in range(count)
        ),
        edges={
            f"edge-{i + 1}": round(share * RENT * STEP**i, 3) if placed else 0.0
            for i in range(number)
        },
        budget=round(share, 3),
        victim=victim,
        slow=slow,
    )


def deal_labels(sizes: Iterable[int]) -> list[tuple[int, ...]]:
    """Deal the ten labels in laps, each lap shifted by one; an agent gets as many as its size."""
    laps = ((start + i) % LABELS for start in itertools.count() for i in range(LABELS))
    hands = []
    for size in sizes:
        hand: set[int] = set()
        while len(hand) < size:
            hand.add(next(laps))
        hands.append(tuple(sorted(hand)))
    return hands


def _position(index: int, count: int) -> tuple[float, float]:
    """Return the place of one of `count` on a disc, in kilometres from its lower left."""
    out, angle = RADIUS_KM * math.sqrt((index + 0.5) / count), TURN * index
    x, y = (round(RADIUS_KM + out * part(angle), 3) for part in (math.cos, math.sin))
    return x, y


def _spared(hands: Sequence[tuple[int, ...]]) -> list[int]:
    """Return whose labels others hold too, also when all of these are out."""
    held = Counter(label for hand in hands for label in hand)
    found: list[int] = []
    for i, hand in enumerate(hands):
        if len(hands) > 1 and len(found) < 2 and all(held[label] > 1 for label in hand):
            held.subtract(hand)
            found.append(i)
    return found
