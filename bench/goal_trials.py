"""The trials of goal-directed selection from one model: which policies, where, and what is kept.

The parts `stationary*` and `carried` of `bench.goals`. Every slot begins with the same model, or
with the last slot's; the rest is as in the paper: L = 15, N = 20, K = 5, clients {1..5} with all
labels, opinions on shares of the common test set, the paper's step of 1e-7 on pixels up to 255,
which is 0.0065 on pixels up to 1.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.study.play import one_blas_thread

from .goal_curves import NUMBERS, SETS, Curves
from .goal_sets import Played, world

CLIMB = "climb"
LEVELS = (0.75, 0.78, 0.82, 0.85)
IID = 5
LAST, AT = 50, 200
"""A run's accuracy is the mean opinion over the last `LAST` of its first `AT` slots."""
RANDOM = 30
"""Slots of `random` where rewards are stationary: each trains a set of its own."""
MARKS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 60, 80, 100, 120, 150, 200)
"""Slots at which curves are kept."""
PAPER = ("world.training.rate=0.0065", "world.training.evaluated_on=test")
RESET = ("world.training.reset=true",)
FEW = ("world.training.samples_per_client=50", "world.training.batch=40")
OWN = "world.training.evaluated_on=own"
MUS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
TUNING_BLOCKS = {
    "stationary-mu": (50,),
    "stationary-own-mu": (50,),
    "stationary-600-mu": (250,),
    "carried-mu": (250, 251),
}
"""Blocks of the parts that choose a mu: trials 500 to 509, which no other part uses."""
TUNED = 0.1
"""Of `MUS`, the best of bp-ucb in `stationary_mu`; of quick-init-ucb it is 0.01."""


@dataclass(frozen=True, slots=True)
class Trials:
    """A policy in blocks of trials; a "seed" is a block.

    Attributes:
        shared: What makes the world; equal ones of a seed share their rewards.
        own: The policy's parameters.
        most: Blocks, at most: what trains a set in every slot is dear.
        shuffled: As of `SlotWorld.play`.
    """

    part: str
    label: str
    policy: str
    shared: tuple[str, ...]
    own: tuple[str, ...] = ()
    slots: int = AT
    trials: int = 10
    most: int = 10
    shuffled: bool = False

    def measure(self, block: int) -> dict[str, object]:
        """Return what the report needs: means over the block's trials, and figures by trial."""
        with one_blas_thread():
            runs = [
                self._run(seed) for seed in range(block * self.trials, (block + 1) * self.trials)
            ]
        until = min(self.slots, AT)
        opinion = np.array([run.opinion for run in runs])
        iid = np.array([[sum(c < IID for c in one) for one in run.sets] for run in runs])
        last = slice(max(0, until - LAST), until)
        marks = [at for at in MARKS if at <= self.slots]
        firsts = [[np.flatnonzero(run.opinion >= level) for run in runs] for level in LEVELS]
        clients = world(self.shared, block * self.trials).recipe.world.clients
        members = [np.bincount(np.concatenate(run.sets), minlength=clients) for run in runs]
        slots = np.mean(members, axis=0)
        found: dict[str, object] = {
            "last": _short(opinion[:, last].mean(axis=1)),
            "iid": _short(iid[:, last].mean(axis=1), 2),
            "sets": [len(set(run.sets[:until])) for run in runs],
            "curve": _short(opinion[:, np.array(marks) - 1].mean(axis=0)),
            "total": _short(opinion.cumsum(axis=1)[:, np.array(marks) - 1].mean(axis=0), 3),
            "to": [[int(one[0]) + 1 for one in ones if len(one)] for ones in firsts],
            "slots": _short(slots, 1),
            "length": self.slots,
        }
        beliefs = [run.belief for run in runs if run.belief is not None]
        if beliefs:
            belief = np.mean(beliefs, axis=0)
            others = belief[:, IID:].mean(axis=1, keepdims=True)
            found["belief"] = [_short(row, 3) for row in np.hstack([belief[:, :IID], others])]
        return found

    def _run(self, seed: int) -> Played:
        here = world(self.shared, seed)
        if self.policy == CLIMB:
            best = here.climb(tuple(range(IID)))
            reward = float(here.opinions(best).mean())
            return Played(np.full(self.slots, reward), [best] * self.slots, None)
        return here.play(self.policy, self.slots, self.own, shuffled=self.shuffled)


def _policies() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the rows of every table: label, policy, its parameters."""
    yield "fixed", "fixed", ()
    yield "random", "random", ()
    yield "round-robin", "round-robin", ()
    quick = ("policies.quick-init-ucb.mu=0.01",)
    yield "quick-init-ucb, mu 0.01", "quick-init-ucb", quick
    for mu in (0.01, TUNED):
        own = (f"policies.bp-ucb.mu={mu}",)
        yield f"bp-ucb, mu {mu:g}", "bp-ucb", own
        literal = (*own, "policies.bp-ucb.cold_start=false")
        yield f"bp-ucb, as printed, mu {mu:g}", "bp-ucb", literal
    yield "quick-init-ucb-paper", "quick-init-ucb-paper", ()


def _shuffled(part: str, shared: tuple[str, ...], trials: int, most: int) -> "Trials":
    """Return quick-init-ucb with shuffled numbers: its ties go to small ones, the first five."""
    own = ("policies.quick-init-ucb.mu=0.01",)
    label = "quick-init-ucb, mu 0.01, shuffled"
    return Trials(part, label, "quick-init-ucb", shared, own, AT, trials, most, shuffled=True)


def stationary() -> Iterator[Trials]:
    """A hundred trials of 50 samples a client; what trains a set in every slot has fewer."""
    shared = (*RESET, *PAPER, *FEW)
    for label, policy, own in _policies():
        few = 2 if policy == "quick-init-ucb-paper" else 10
        slots = RANDOM if policy == "random" else AT
        yield Trials("stationary", label, policy, shared, own, slots, most=few)
    yield _shuffled("stationary", shared, 10, 10)
    yield Trials("stationary", "best found from {1..5}", CLIMB, shared, (), 1, most=1)


def stationary_600() -> Iterator[Trials]:
    """Six trials of 600 samples a client."""
    shared = (*RESET, *PAPER)
    for label, policy, own in _policies():
        if policy != "quick-init-ucb-paper":
            slots = RANDOM // 2 if policy == "random" else AT
            yield Trials("stationary-600", label, policy, shared, own, slots, 2, most=3)
    yield _shuffled("stationary-600", shared, 2, 3)


def stationary_own() -> Iterator[Trials]:
    """Ten trials in which clients score the model on samples of their own."""
    shared = (*RESET, *PAPER, *FEW, OWN)
    for label, policy, own in _policies():
        if policy != "quick-init-ucb-paper":
            slots = RANDOM if policy == "random" else AT
            yield Trials("stationary-own", label, policy, shared, own, slots, most=1)


def carried() -> Iterator[Trials]:
    """Six trials in which the model carries over from slot to slot."""
    for label, policy, own in _policies():
        yield Trials("carried", label, policy, (*PAPER, *FEW), own, trials=2, most=3)
    yield _shuffled("carried", (*PAPER, *FEW), 2, 3)


def curves() -> Iterator[Curves]:
    """Fig. 5: random sets of K, and four sets."""
    shared = (*PAPER, *FEW)
    for size in NUMBERS:
        yield Curves("curves", f"K = {size}", shared, (), size)
    for label, members in SETS.items():
        yield Curves("curves", label, shared, members, IID)


def stationary_mu() -> Iterator[Trials]:
    """Exploration where rewards are stationary, of both policies."""
    shared = (*RESET, *PAPER, *FEW)
    yield from _tuned("stationary-mu", shared, ("quick-init-ucb", "bp-ucb"), 10)


def stationary_own_mu() -> Iterator[Trials]:
    """Exploration of bp-ucb where clients score the model on samples of their own."""
    yield from _tuned("stationary-own-mu", (*RESET, *PAPER, *FEW, OWN), ("bp-ucb",), 10)


def stationary_600_mu() -> Iterator[Trials]:
    """Exploration of bp-ucb with 600 samples a client."""
    yield from _tuned("stationary-600-mu", (*RESET, *PAPER), ("bp-ucb",), 2)


def carried_mu() -> Iterator[Trials]:
    """Exploration of bp-ucb where the model carries over."""
    yield from _tuned("carried-mu", (*PAPER, *FEW), ("bp-ucb",), 2)


def _tuned(
    part: str, shared: tuple[str, ...], policies: tuple[str, ...], trials: int
) -> Iterator[Trials]:
    yield Trials(part, "fixed", "fixed", shared, trials=trials, most=1000)
    for policy in policies:
        for mu in MUS:
            own = (f"policies.{policy}.mu={mu}",)
            yield Trials(part, f"{policy}, {mu:g}", policy, shared, own, AT, trials, most=1000)


def _short(values: FloatArray, digits: int = 4) -> list[float]:
    return [round(float(value), digits) for value in values]
