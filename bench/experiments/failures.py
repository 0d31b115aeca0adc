"""Where the papers' constants fail, as data: the runs behind `docs/policies/img`.

`plots.py` draws them. Everything is seeded and in virtual time; the two worlds
here that are not recipes of the testbed are the smallest that show the effect.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from fedagent_coordinator import placement, policies
from fedagent_coordinator.placement import PlacementPolicy, PlacementView
from fedagent_coordinator.policies import Feedback, Purpose, RoundView, SelectionPolicy, round_rng
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_coordinator.policies.sets.beliefs import propagate, propagate_literal, wire
from fedagent_coordinator.policies.sets.neighbours import k_nearest
from fedagent_testbed.study import (
    History,
    compare,
    load_recipe,
    make_policy,
    make_world,
    play,
)
from fedagent_testbed.worlds import arrived

SEEDS = 5
NOISES = (-166, -160)
COCS = ("oracle-p", "adaptive", "linucb", "cocs", "cocs-paper", "cheapest")
BESIDE = ("oracle", "cucb", "random", "all")
"""Beside `COCS` in the tables, not in the picture."""
CLIENTS, SIZE, SLOTS = 20, 5, 500
EDGES, RENTED_ROUNDS = 10, 1000
MICRO = 1_000_000
WEIGHTS = (1, 2, 5, 10, 20, 50, 100)
QUEUED = (1, 5, 20, 50)


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """A run over client sets.

    Attributes:
        replays: int64[T], how many slots up to each one played a set played before.
        reward: float64[T], what each slot's set is worth without the noise.
        best: The worth of the best set.
    """

    replays: IntArray
    reward: FloatArray
    best: float


@dataclass(frozen=True, slots=True, eq=False)
class Saturation:
    """Beliefs of one random town of clients.

    Attributes:
        opinion: float64[N].
        ours: float64[N], converged.
        literal: float64[S, N], after 1 to S sweeps.
    """

    opinion: FloatArray
    ours: FloatArray
    literal: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Rents:
    """A run of a placement.

    Attributes:
        plays: int64[M], rounds at each edge.
        psi: float64[T], cost of each round that was paid.
        order: int64[M], edges by their mean cost, cheapest in time first.
        paid: float64[T], rent of each round, in the greatest rent.
    """

    plays: IntArray
    psi: FloatArray
    order: IntArray
    paid: FloatArray


def saturation(seed: int, sweeps: int = 12) -> Saturation:
    """Return the beliefs of clients at random places with four neighbours each."""
    rng = np.random.default_rng(seed)
    places, opinion = rng.random((CLIENTS, 2)), rng.uniform(0.6, 0.9, CLIENTS)
    graph = k_nearest("bp-ucb", places, 4)
    literal = [
        propagate_literal(graph, opinion, max_sweeps=sweep).belief for sweep in range(1, sweeps + 1)
    ]
    return Saturation(opinion, propagate(wire(graph), opinion).belief, np.array(literal))


def exploration(
    noise: int, *, seeds: int = SEEDS, rounds: int = 1000, jobs: int = 1
) -> dict[str, list[History]]:
    """Run the policies of COCS on the recipe `cocs-decisions`; runs by policy."""
    recipe = load_recipe(
        "cocs-decisions", [f"world.radio.noise_dbm_hz={noise}", f"rounds.count={rounds}"]
    )
    result = compare(recipe, [*COCS, *BESIDE], seeds=seeds, jobs=jobs)
    return {name: list(runs) for name, runs in result.histories.items()}


def slots(policy: SelectionPolicy, seed: int, *, count: int = SLOTS) -> Slots:
    """Play client sets in a world where a set is worth the mean of its members.

    20 clients, the first five worth 0.9, the others U[0.4, 0.8] by seed; a slot is one
    round, its opinion is the set's worth + N(0, 0.01), the same from everybody.
    """
    rng = np.random.default_rng((seed, 1))
    worth = rng.uniform(0.4, 0.8, CLIENTS)
    worth[:SIZE] = 0.9
    seen: set[tuple[int, ...]] = set()
    replays, reward = np.zeros(count, dtype=np.int64), np.zeros(count)
    again = 0
    for t in range(1, count + 1):
        view = _open_view(t)
        pairs = policy.select(view, round_rng(seed, t, Purpose.SELECT)).pairs
        members = tuple(sorted(pairs.tolist()))
        again += members in seen
        seen.add(members)
        replays[t - 1], reward[t - 1] = again, worth[pairs].mean()
        opinion = float(np.clip(reward[t - 1] + rng.normal(0.0, 0.01), 0.0, 1.0))
        policy.learn(_in_time(view, pairs, np.full(CLIENTS, opinion)))
    return Slots(replays, reward, float(np.sort(worth)[-SIZE:].mean()))


def rents(
    policy: PlacementPolicy, seed: int, *, rounds: int = RENTED_ROUNDS, budget: float | None = None
) -> Rents:
    """Rent edges whose cost and rent have nothing to do with each other.

    10 edges; the mean cost psi of an edge is U[1, 10] s, a round's +- 20 %; rents are
    U[0.1, 1] of the greatest, fixed. The run ends with the rounds or with the budget,
    which counts greatest rents (None: enough for every round anywhere).
    """
    rng = np.random.default_rng((seed, 2))
    mean, rent = rng.uniform(1, 10, EDGES), rng.uniform(0.1, 1, EDGES)
    rent_micro = np.round(rent / rent.max() * MICRO).astype(np.int64)
    left = round(MICRO * (rounds if budget is None else budget))
    plays = np.zeros(EDGES, dtype=np.int64)
    psi, paid = [], []
    for t in range(1, rounds + 1):
        noise = rng.uniform(0.8, 1.2, EDGES)
        view = PlacementView(
            round=t,
            edge_live=np.ones(EDGES, dtype=np.bool_),
            edge_rent=rent_micro,
            budget_micro=left,
            edge_transfer_s=mean,
        )
        placed = policy.choose(view, round_rng(seed, t, Purpose.PLACE))
        if placed.edge is None:
            break
        left -= placed.rent_micro
        plays[placed.edge] += 1
        psi.append(float(mean[placed.edge] * noise[placed.edge]))
        paid.append(placed.rent_micro / MICRO)
        policy.learn(placed, psi[-1])
    order = np.argsort(mean, kind="stable").astype(np.int64)
    return Rents(plays, np.array(psi), order, np.array(paid))


def fairness(
    name: str, *, seeds: int = SEEDS, rounds: int = 500, weight: float | None = None
) -> tuple[float, float]:
    """Return seconds per round and the smallest selection rate on `rbcs-f-numeric`."""
    sets = [f"rounds.count={rounds}"]
    if weight is not None:
        sets.append(f"policies.{name}.V={float(weight)}")
    recipe = load_recipe("rbcs-f-numeric", sets)
    runs = [play(recipe, name, seed) for seed in range(seeds)]
    seconds = [float(run["seconds"].mean()) for run in runs]
    return float(np.mean(seconds)), float(np.mean([run.rates().min() for run in runs]))


def pulls(*, seed: int = 0, rounds: int = 500) -> dict[str, FloatArray]:
    """Return every client's share of the rounds of `random` and of `fedcs` without a cap."""
    rates = {}
    for name, room in (("random", 8), ("fedcs", 40)):
        sets = [f"rounds.count={rounds}", f"budget.per_edge={room}"]
        rates[name] = play(load_recipe("rbcs-f-numeric", sets), name, seed).rates()
    return rates


def queues(weight: float, *, seed: int = 0, rounds: int = 500) -> tuple[FloatArray, FloatArray]:
    """Run RBCS-F on `rbcs-f-numeric` with this V.

    Returns:
        The mean queue before each round, float64[T], and every client's share of rounds,
        float64[N], ten clients of each class, the fastest class first.
    """
    recipe = load_recipe("rbcs-f-numeric", [f"policies.rbcs-f.V={float(weight)}"])
    policy, world = make_policy(recipe, "rbcs-f"), make_world(recipe, seed)
    mean, plays = np.zeros(rounds), np.zeros(recipe.world.clients)
    for t in range(1, rounds + 1):
        view = world.view(t)
        selection = policy.select(view, round_rng(seed, t, Purpose.SELECT))
        mean[t - 1] = selection.notes["queue_mean"]
        plays[view.pair_client[selection.pairs]] += 1
        policy.learn(replace(world.play(view, selection.pairs), view=replace(view, truth=None)))
    return mean, plays / rounds


def quick_inits(seeds: Sequence[int], count: int = SLOTS) -> Iterator[tuple[str, list[Slots]]]:
    """Yield the runs of Quick-Init UCB with the paper's mu, with ours, and of `random`."""
    paper = {"quick-init-ucb-paper": ("quick-init-ucb", {"mu": 1.0})}
    for name in ("quick-init-ucb-paper", "quick-init-ucb", "random"):
        policy, params = paper.get(name, (name, {}))
        yield name, [slots(policies.create(policy, **params), seed, count=count) for seed in seeds]


def placements(
    names: Sequence[str], seeds: Sequence[int], budget: float | None = None
) -> Iterator[tuple[str, list[Rents]]]:
    """Yield the runs of placements; with a budget, for as long as it lasts."""
    rounds = RENTED_ROUNDS if budget is None else 10 * RENTED_ROUNDS
    for name in names:
        yield (
            name,
            [rents(placement.create(name), seed, rounds=rounds, budget=budget) for seed in seeds],
        )


def _open_view(t: int) -> RoundView:
    """Return a round in which five of twenty clients can be paid, whoever they are."""
    return RoundView(
        round=t,
        pair_client=np.arange(CLIENTS, dtype=np.int32),
        pair_edge=np.zeros(CLIENTS, dtype=np.int32),
        pair_features=np.zeros((CLIENTS, 0), dtype=np.float32),
        feature_names=(),
        client_price=np.ones(CLIENTS, dtype=np.int64),
        client_available=np.ones(CLIENTS, dtype=np.bool_),
        edge_budget=np.array([SIZE], dtype=np.int64),
    )


def _in_time(view: RoundView, pairs: IntArray, opinions: FloatArray) -> Feedback:
    """Return that all arrived at once."""
    yes, second, one = np.ones(len(pairs), bool), np.ones(len(pairs)), np.ones(len(pairs), np.int64)
    stages = dict.fromkeys(("dt_s", "lc_s", "ut_s", "seconds_per_iteration"), second)
    counts = dict.fromkeys(("arrivals", "num_samples"), one)
    return arrived(view, pairs, yes, second, **stages, **counts, opinions=opinions)
