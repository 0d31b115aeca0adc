"""Where the papers' constants fail, in the smallest worlds that show it; pages of docs/policies.

Points ``name@x`` of the table are drawn by `plots.py`. Two of these worlds are no recipes of the
testbed: client sets that are worth the mean of their members, and edges whose cost and rent have
nothing to do with each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from fedagent_coordinator import placement, policies
from fedagent_coordinator.placement import PlacementView
from fedagent_coordinator.policies import Feedback, Purpose, RoundView, round_rng
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_coordinator.policies.sets.beliefs import k_nearest, propagate, propagate_literal, wire
from fedagent_testbed.study import load_recipe, make_policy, make_world
from fedagent_testbed.worlds import arrived

from .measures import Figures
from .table import Line, line

CLIENTS, SIZE, SLOTS = 20, 5, 500
EDGES, RENTED_ROUNDS, BUDGET = 10, 1000, 300.0
MICRO = 1_000_000
EVERY, WINDOW = 20, 20
"""Rounds between two points of a curve; those whose mean is a point of what sets are worth."""
PLACEMENTS = ("budgeted-ucb-paper", "budgeted-ucb", "random", "min-trans", "min-cost")


def lines(name: str, seeds: int, only: str) -> Iterator[Line]:
    """Yield the line of each case of one of these experiments."""
    for case, run in CASES[name].items():
        if only in case:
            yield line(name, case, [run(seed) for seed in range(seeds)])


def points(name: str, curve: FloatArray | IntArray, first: int = 1) -> Figures:
    """Return every twentieth point of a curve, the first and the last too."""
    at = sorted({*range(0, len(curve), EVERY), len(curve) - 1})
    return {f"{name}@{i + first}": float(curve[i]) for i in at}


def saturation(seed: int, sweeps: int = 12) -> Figures:
    """Beliefs of clients at random places with four neighbours each: as printed, and ours."""
    rng = np.random.default_rng(seed)
    places, opinion = rng.random((CLIENTS, 2)), rng.uniform(0.6, 0.9, CLIENTS)
    graph = k_nearest("bp-ucb", places, 4)
    literal = [propagate_literal(graph, opinion, max_sweeps=s + 1).belief for s in range(sweeps)]
    ours = propagate(wire(graph), opinion).belief
    return {
        "ours_largest": float(ours.max()),
        "ours_follows_opinions": float(np.corrcoef(opinion, ours)[0, 1]),
        **{f"largest@{s + 1}": float(found.max()) for s, found in enumerate(literal)},
    }


def slots(name: str, seed: int, *, count: int = SLOTS, **params: float) -> Figures:
    """Play client sets in a world where a set is worth the mean of its members.

    20 clients, the first five worth 0.9, the others U[0.4, 0.8] by seed; a slot is one
    round, its opinion is the set's worth + N(0, 0.01), the same from everybody.
    """
    policy, rng = policies.create(name, **params), np.random.default_rng((seed, 1))
    worth = rng.uniform(0.4, 0.8, CLIENTS)
    worth[:SIZE] = 0.9
    seen: set[tuple[int, ...]] = set()
    replays, reward = np.zeros(count), np.zeros(count)
    for t in range(1, count + 1):
        view = _open_view(t)
        pairs = policy.select(view, round_rng(seed, t, Purpose.SELECT)).pairs
        members = tuple(sorted(pairs.tolist()))
        replays[t - 1], reward[t - 1] = members in seen, worth[pairs].mean()
        seen.add(members)
        opinion = float(np.clip(reward[t - 1] + rng.normal(0.0, 0.01), 0.0, 1.0))
        policy.learn(_in_time(view, pairs, np.full(CLIENTS, opinion)))
    smooth = np.convolve(reward, np.ones(WINDOW) / WINDOW, mode="valid")
    return {
        "best": float(np.sort(worth)[-SIZE:].mean()),
        "worth_last_50": float(reward[-50:].mean()),
        **points("replays", replays.cumsum()),
        **points("worth", smooth, WINDOW),
    }


def rents(
    name: str, seed: int, *, rounds: int = RENTED_ROUNDS, budget: float | None = None
) -> Figures:
    """Rent edges whose cost and rent have nothing to do with each other.

    10 edges; the mean cost psi of an edge is U[1, 10] s, a round's +- 20 %; rents are
    U[0.1, 1] of the greatest, fixed. The run ends with the rounds or with the budget,
    which counts greatest rents (None: enough for every round anywhere). ``plays@1`` is the
    edge whose mean cost is least.
    """
    policy, rng = placement.create(name), np.random.default_rng((seed, 2))
    mean, rent = rng.uniform(1, 10, EDGES), rng.uniform(0.1, 1, EDGES)
    rent_micro = np.round(rent / rent.max() * MICRO).astype(np.int64)
    left = round(MICRO * (rounds if budget is None else budget))
    plays, paid, psi = np.zeros(EDGES, dtype=np.int64), 0, list[float]()
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
        paid += placed.rent_micro
        plays[placed.edge] += 1
        psi.append(float(mean[placed.edge] * noise[placed.edge]))
        policy.learn(placed, psi[-1])
    by_cost = plays[np.argsort(mean, kind="stable")].tolist()
    return {
        "rounds": float(len(psi)),
        "psi_s": float(np.mean(psi)),
        "paid": paid / MICRO,
        "widest_gap": float(np.ptp(plays)),
        **{f"plays@{place + 1}": float(n) for place, n in enumerate(by_cost)},
    }


def queues(weight: float, seed: int, *, rounds: int = 500) -> Figures:
    """Run RBCS-F on `rbcs-f-numeric` with this V (Fig. 2 and 4).

    ``queue@t`` is the mean queue before a round; ``share@n`` what part of the rounds the client
    had that comes n-th, the least chosen first; classes of ten clients, the fastest first.
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
    share = plays / rounds
    by_class = enumerate(share.reshape(4, -1).mean(axis=1).tolist())
    return {
        **points("queue", mean),
        **{f"share@{n + 1}": float(one) for n, one in enumerate(np.sort(share))},
        **{f"share_of_class@{n + 1}": one for n, one in by_class},
    }


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


ABOUT: dict[str, tuple[str, int]] = {
    "bp-saturation": ("GDA (ours: beliefs as printed)", 5),
    "quick-init-replays": ("GDA (ours: mu)", 5),
    "placement-rents": ("BAS (ours: the bonus)", 5),
    "placement-budget": ("BAS (ours: the bonus)", 5),
    "rbcs-queues": ("RBCS-F, Fig. 2 and 4", 1),
}
CASES: dict[str, dict[str, Callable[[int], Figures]]] = {
    "bp-saturation": {"": saturation},
    "quick-init-replays": {
        "quick-init-ucb-paper": lambda seed: slots("quick-init-ucb", seed, mu=1.0),
        "quick-init-ucb": lambda seed: slots("quick-init-ucb", seed),
        "random": lambda seed: slots("random", seed),
    },
    "placement-rents": {name: partial(rents, name) for name in PLACEMENTS[:2]},
    "placement-budget": {
        name: partial(rents, name, rounds=10 * RENTED_ROUNDS, budget=BUDGET) for name in PLACEMENTS
    },
    "rbcs-queues": {f"V = {v}": partial(queues, v) for v in (1, 5, 20, 50)},
}
