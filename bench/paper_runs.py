"""What RBCS-F's and COCS's figures are made of: runs by part, which `bench.kept` plays once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from fedagent_coordinator.policies import Purpose, round_rng
from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import History, TestbedRecipe, load_recipe, make_world, play
from fedagent_testbed.study.history import jain
from fedagent_testbed.study.play import one_blas_thread
from fedagent_testbed.worlds.base import spawned_rng

from .kept import Job
from .rows import Row

GAMMAS = ("1", "10", "inf")
"""Dirichlet parameters of labels (gamma1) and of selection (gamma2); inf: all alike."""
UNEVEN = ("0.1", "1", "10", "inf")
SELECTED = 8
WEIGHTS = (1, 20, 50)
BASELINES = ("random", "fedcs", "fastest")
HORIZON = 3000
CHECKPOINTS = (
    *(100, 140, 200, 280, 400, 550, 750, 1000),
    *(1250, 1500, 1750, 2000, 2250, 2500, 2750, 3000),
)
NOISES = (-166, -160)
REGRET = ("oracle-p", "adaptive", "linucb", "cocs", "cocs-paper")
SWEPT = ("adaptive", "cocs", "random")
MERGES = (1, 2, 5, 10, 20)
LEAST = (1, 2, 4, 6)
TARGET = 0.7
_UNEVEN = 1 << 26
"""First spawn key of the shares of uneven selection."""


@dataclass(frozen=True, slots=True)
class Case:
    """A policy on a recipe.

    Attributes:
        part: Of `PARTS`.
        label: What the documents call it; unique in its part.
        policy: Its name.
        recipe: Its name.
        sets: What differs from the recipe.
        told: What of the run is kept.
    """

    part: str
    label: str
    policy: str
    recipe: str
    sets: tuple[str, ...]
    told: Callable[[History], Row]

    def measure(self, seed: int) -> Row:
        """Play it."""
        return self.told(play(load_recipe(self.recipe, self.sets), self.policy, seed))


@dataclass(frozen=True, slots=True)
class Uneven:
    """Clients drawn in each round by shares out of Dir(gamma2 * 1), drawn once (RBCS-F, Fig. 5).

    Attributes:
        part: Of `PARTS`.
        label: gamma1, and gamma2.
        gamma: gamma2; inf for equal shares.
        sets: What differs from the recipe.
    """

    part: str
    label: str
    gamma: float
    sets: tuple[str, ...] = field(default=())

    def measure(self, seed: int) -> Row:
        """Play it on `rbcs-f-fashion`."""
        recipe = load_recipe("rbcs-f-fashion", self.sets)
        with one_blas_thread():
            return curve(drawn(recipe, shares(self.gamma, recipe.world.clients, seed), seed))


def shares(gamma: float, clients: int, seed: int) -> FloatArray:
    """Return every client's share of the selection, float64[N]."""
    if np.isinf(gamma):
        return np.full(clients, 1 / clients)
    drawn_shares = spawned_rng(seed, _UNEVEN).dirichlet(np.full(clients, gamma))
    # Eight of those available are wanted, so that none may be impossible.
    floored = np.maximum(drawn_shares, 1e-12)
    return np.asarray(floored / floored.sum(), dtype=np.float64)


def drawn(recipe: TestbedRecipe, share: FloatArray, seed: int) -> History:
    """Let clients train that are drawn by their shares among the available ones."""
    world, learner, history = (
        make_world(recipe, seed),
        FederatedLearner(recipe, seed),
        History("", 0),
    )
    for t in range(1, recipe.rounds.count + 1):
        view = world.view(t)
        there = np.flatnonzero(view.client_available[view.pair_client])
        chance = share[view.pair_client[there]]
        rng = round_rng(seed, t, Purpose.SELECT)
        pairs = np.sort(rng.choice(there, SELECTED, replace=False, p=chance / chance.sum()))
        feedback = world.play(view, pairs)
        learner.advance(feedback)
        tested = t % recipe.world.training.evaluate_every == 0
        history.count(view.pair_client[pairs], recipe.world.clients)
        history.rows.append(
            {
                "accuracy": learner.accuracy() if tested else np.nan,
                "seconds": float(feedback.tau_s.max()),
                "selected": len(pairs),
                "wins": int(feedback.X.sum()),
            }
        )
    return history


def curve(run: History) -> Row:
    """Keep accuracy over rounds and virtual seconds, and who trained."""
    tested = np.flatnonzero(np.isfinite(run["accuracy"]))
    return {
        "round": (tested + 1).tolist(),
        "accuracy": run["accuracy"][tested].round(4).tolist(),
        "seconds": run["seconds"].cumsum()[tested].round(1).tolist(),
        **who(run),
    }


def who(run: History) -> Row:
    """Keep how fast, and how even."""
    return {
        "seconds_per_round": round(float(run["seconds"].mean()), 3),
        "selected": round(float(run["selected"].mean()), 2),
        "updates": int(run["wins"].sum()),
        "min_rate": round(float(run.rates().min()), 4),
        "jain": round(jain(run.rates()), 4),
    }


def reached(run: History) -> Row:
    """Keep when the target was reached, and the last accuracies."""
    first = run.first_at(TARGET)
    return {
        "rounds_to": first,
        "seconds_to": None if first is None else round(float(run["seconds"][:first].sum()), 1),
        "last": round(float(run["accuracy"][-10:].mean()), 4),
        **who(run),
    }


def wins(run: History) -> Row:
    """Keep cumulative successes at `CHECKPOINTS`, and the rounds that explored."""
    total = run["wins"].cumsum()
    return {
        "wins": [int(total[t - 1]) for t in CHECKPOINTS if t <= len(run)],
        "explored": int(run["explored"].sum()),
    }


def fashion() -> Iterator[Case]:
    """Accuracy against rounds and time, softmax, three kinds of labels (RBCS-F, Fig. 6 and 7)."""
    for gamma in GAMMAS:
        yield from _fashion(
            "fashion", gamma, WEIGHTS, BASELINES, ("world.training.evaluate_every=10",)
        )


def fashion_cnn() -> Iterator[Case]:
    """The same with the paper's network: fewer rounds, samples and policies."""
    sets = (
        *(
            "world.training.model=cnn",
            "world.training.samples_per_client=200",
            "world.training.test_samples=2000",
        ),
        *("rounds.count=60", "world.training.evaluate_every=5"),
    )
    yield from _fashion("fashion-cnn", "1", (20,), ("random", "fedcs"), sets)


def uneven() -> Iterator[Uneven]:
    """The fairness test: how unevenly clients are drawn, and what the model loses (Fig. 5)."""
    for labels in GAMMAS:
        for gamma in UNEVEN:
            sets = (_labels(labels), "world.training.evaluate_every=10")
            yield Uneven("uneven", f"{labels}, {gamma}", float(gamma), sets)


def regret() -> Iterator[Case]:
    """Successes over T = 3000 rounds of the radio model (COCS, Fig. 3b)."""
    known = (f"policies.cocs.horizon={HORIZON}", f"policies.cocs-paper.horizon={HORIZON}")
    for noise in NOISES:
        sets = (f"world.radio.noise_dbm_hz={noise}", f"rounds.count={HORIZON}", *known)
        for name in REGRET:
            yield Case("regret", f"{name}, {noise}", name, "cocs-decisions", sets, wins)


def merges() -> Iterator[Case]:
    """T_ES: rounds between two merges of the edges, on MNIST."""
    yield from _swept("merge", "rounds.merge_every", MERGES)


def min_updates() -> Iterator[Case]:
    """Z: updates that an edge waits for beyond the deadline, on MNIST, budget 10."""
    yield from _swept("min-updates", "rounds.min_updates", LEAST, "budget.per_edge=10")


def cifar_row() -> Iterator[Case]:
    """The CIFAR row with its network, on Fashion-MNIST; 40 samples a client, 30 rounds."""
    sets = ("rounds.count=30", "world.training.samples_per_client=40")
    for name in SWEPT:
        yield Case("cifar-row", name, name, "cocs-fashion-cnn", sets, curve)


PARTS: dict[str, tuple[Callable[[], Iterator[Job]], int]] = {
    "fashion": (fashion, 3),
    "uneven": (uneven, 5),
    "fashion-cnn": (fashion_cnn, 3),
    "regret": (regret, 3),
    "merge": (merges, 3),
    "min-updates": (min_updates, 3),
    "cifar-row": (cifar_row, 1),
}
"""Jobs of a part, and how many seeds the documents show."""


def _fashion(
    part: str,
    gamma: str,
    weights: tuple[int, ...],
    baselines: tuple[str, ...],
    sets: tuple[str, ...],
) -> Iterator[Case]:
    named = [(f"rbcs-f V={v}", "rbcs-f", (f"policies.rbcs-f.V={float(v)}",)) for v in weights]
    for label, policy, own in [*named, *((name, name, ()) for name in baselines)]:
        every = (_labels(gamma), *sets, *own)
        yield Case(part, f"{label}, {gamma}", policy, "rbcs-f-fashion", every, curve)


def _labels(gamma: str) -> str:
    return (
        "world.training.partition=iid" if gamma == "inf" else f"world.training.gamma={float(gamma)}"
    )


def _swept(part: str, key: str, values: tuple[int, ...], *more: str) -> Iterator[Case]:
    # An edge may wait for its Z-th update: most come within half a minute.
    sets = ("rounds.max_wait_s=30", "rounds.count=100", *more)
    for value in values:
        for name in SWEPT:
            every = (*sets, f"{key}={value}")
            yield Case(part, f"{name}, {value}", name, "cocs-mnist", every, reached)
