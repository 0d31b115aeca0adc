"""Goal-directed selection slot by slot, where every slot starts from the same model or not.

With `training.reset` the reward of a set is a function of the set: it is trained once per trial,
with the batches of the first slot, and remembered. What that leaves out is the order of batches,
which moves a reward by 0.0004 (`gda-mnist`, {1..5}); a hundred trials become affordable. As in the
paper: L = 15, N = 20, K = 5, clients {1..5} with all labels, opinions on shares of the common test
set, the step of 1e-7 on pixels up to 255, which is 0.0065 on pixels up to 1.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache

import numpy as np

from bench.decisions import outcome
from fedagent_coordinator import policies
from fedagent_coordinator.policies import Purpose, RoundView, round_rng
from fedagent_coordinator.policies.base import FloatArray, IntArray
from fedagent_testbed.learning.local_sgd import BatchedModel
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import load_recipe, make_policy, make_world
from fedagent_testbed.study.play import one_blas_thread

from .measures import LEVELS, Figures
from .table import Line, line

Members = tuple[int, ...]
IID, SLOT, SLOTS, LAST, BELIEVED = 5, 15, 200, 50, 30
MARKS = (1, 2, 3, 5, 10, 20, 30, 50, 100, 200)
MUS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
PAPER = ("world.training.rate=0.0065", "world.training.evaluated_on=test")
FEW = ("world.training.samples_per_client=50", "world.training.batch=40")
RESET, OWN = ("world.training.reset=true",), ("world.training.evaluated_on=own",)
CLIMB, TUNING = "best found from {1..5}", 500
"""A row of its own; the first trial of those that choose mu, which nothing else uses."""
WHERE: dict[str, tuple[str, ...]] = {
    "gda-stationary": (*RESET, *PAPER, *FEW),
    "gda-stationary-own": (*RESET, *PAPER, *FEW, *OWN),
    "gda-stationary-600": (*RESET, *PAPER),
    "gda-carried": (*PAPER, *FEW),
    "gda-stationary-mu": (*RESET, *PAPER, *FEW),
    "gda-carried-mu": (*PAPER, *FEW),
}
FIG5: dict[str, Members] = {
    **{f"K = {size}": (size,) for size in (1, 5, 10, 15, 20)},
    "{16..20}": tuple(range(15, 20)),
    "{1..20}": tuple(range(20)),
    "{1..5}": tuple(range(5)),
}
"""Random sets of a size, drawn anew for each slot, or the members of one set."""
ABOUT = {
    "gda-stationary": ("GDA, Table I and Fig. 6 to 9, every slot from the same model", 100),
    "gda-stationary-own": ("GDA, the same with opinions on own samples", 10),
    "gda-stationary-600": ("GDA, the same with 600 samples a client", 6),
    "gda-carried": ("GDA, Table I and Fig. 6 to 9, the model carries over", 6),
    "gda-stationary-mu": ("GDA, exploration", 10),
    "gda-carried-mu": ("GDA, exploration", 4),
    "gda-growth": ("GDA, Fig. 5", 10),
    "gda-kinds": ("GDA, opinions by kind of client", 3),
    "gda-decision-ms": ("GDA, Fig. 12", 1),
}


@dataclass(eq=False)
class Played:
    """A policy's slots of one trial: mean opinions float64[T], sets, beliefs float64[B, N]."""

    opinion: FloatArray
    sets: list[Members]
    belief: FloatArray | None = None


@dataclass(eq=False)
class SlotWorld:
    """One trial: data, positions and the first model, all by its seed."""

    sets: tuple[str, ...]
    seed: int
    known: dict[Members, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.recipe = load_recipe("gda-mnist", self.sets)
        self._world = make_world(self.recipe, self.seed)
        self._fresh = FederatedLearner(self.recipe, self.seed)
        self._first = self._fresh.opinions()
        self._view = self._world.view(1)

    def opinions(self, clients: Members) -> FloatArray:
        """Return what all think after a slot of this set from the first model, float64[N]."""
        if clients not in self.known:
            self.known[clients] = self.slot(self._fresh, 1, np.array(clients))
        return self.known[clients]

    def play(
        self, name: str, slots: int, own: Sequence[str] = (), *, shuffled: bool = False
    ) -> Played:
        """Play a policy, with keys of its own over the recipe's, for so many slots.

        Shuffled: it sees clients under other numbers, so that ties to the smaller number tell
        nothing of data; sets are named by the data all the same.
        """
        order = np.arange(self.recipe.world.clients)
        if shuffled:
            order = np.random.default_rng(self.seed).permutation(order)
        # A slot is one round here.
        policy = make_policy(
            load_recipe("gda-mnist", (*self.sets, *own, "world.training.slot_rounds=1")), name
        )
        learner = (
            self._fresh
            if self.recipe.world.training.reset
            else FederatedLearner(self.recipe, self.seed)
        )
        opinions, means, sets, beliefs = self._first, list[float](), list[Members](), []
        for t in range(1, slots + 1):
            view = replace(self._view, round=t, opinions=opinions[order])
            chosen = policy.select(view, round_rng(self.seed, t, Purpose.SELECT)).pairs
            clients = np.sort(order[np.unique(view.pair_client[chosen])])
            members = tuple(clients.tolist())
            reset = self.recipe.world.training.reset
            opinions = self.opinions(members) if reset else self.slot(learner, t, clients)
            policy.learn(replace(self._world.play(view, chosen), opinions=opinions[order]))
            means.append(float(opinions.mean()))
            sets.append(members)
            if name == "bp-ucb" and t <= BELIEVED:
                beliefs.append(policy.state()["belief"].copy())
        return Played(np.array(means), sets, np.array(beliefs) if beliefs else None)

    def climb(self, start: Members) -> Members:
        """Return a set that no exchange of one member betters, from `start` by best exchanges."""
        everybody, best = set(range(self.recipe.world.clients)), start
        while True:
            nearby = [
                tuple(sorted({*best, new} - {old}))
                for old in best
                for new in sorted(everybody - set(best))
            ]
            found = max(nearby, key=lambda one: float(self.opinions(one).mean()))
            if self.opinions(found).mean() <= self.opinions(best).mean():
                return best
            best = found

    def slot(self, learner: FederatedLearner, slot: int, clients: IntArray) -> FloatArray:
        """Train a set for a slot; return all opinions, float64[N]."""
        for round_ in range((slot - 1) * SLOT + 1, slot * SLOT + 1):
            view = self._world.view(round_)
            _, first = np.unique(view.pair_client, return_index=True)
            learner.advance(self._world.play(view, np.asarray(first[clients], dtype=np.int64)))
        return learner.opinions()


def lines(name: str, seeds: int, only: str) -> Iterator[Line]:
    """Yield the rows of an experiment of `ABOUT`; seeds are trials."""
    with one_blas_thread():
        if name == "gda-growth":
            for case, members in FIG5.items():
                if only in case:
                    yield line(
                        name, case, [growth(members, case[0] == "K", seed) for seed in range(seeds)]
                    )
        elif name == "gda-kinds":
            yield line(name, "random sets", [kinds(seed) for seed in range(seeds)])
        elif name == "gda-decision-ms":
            yield from decision_ms(name, only)
        else:
            yield from trials(name, seeds, only)


def cases(name: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield label, policy and its keys."""
    yield "fixed", "fixed", []
    if name.endswith("-mu"):
        for policy in ("quick-init-ucb", "bp-ucb")[name != "gda-stationary-mu" :]:
            yield from (
                (f"{policy}, mu {mu:g}", policy, [f"policies.{policy}.mu={mu}"]) for mu in MUS
            )
        return
    yield "random", "random", []
    yield "round-robin", "round-robin", []
    quick = ["policies.quick-init-ucb.mu=0.01"]
    yield "quick-init-ucb, mu 0.01", "quick-init-ucb", quick
    yield "quick-init-ucb, mu 0.01, shuffled", "quick-init-ucb", quick
    for mu in (0.01, 0.1):
        own = [f"policies.bp-ucb.mu={mu}"]
        yield f"bp-ucb, mu {mu:g}", "bp-ucb", own
        yield f"bp-ucb, as printed, mu {mu:g}", "bp-ucb", [*own, "policies.bp-ucb.cold_start=false"]
    yield "quick-init-ucb-paper", "quick-init-ucb-paper", []
    if name == "gda-stationary":
        yield CLIMB, CLIMB, []


def trials(name: str, seeds: int, only: str) -> Iterator[Line]:
    """Yield a row for each policy: accuracy, gap to {1..5}, regret in slots of it, who trains."""
    first = TUNING if name.endswith("-mu") else 0
    worlds = cache(lambda seed: SlotWorld(WHERE[name], seed))
    best = [worlds(seed).play("fixed", SLOTS).opinion for seed in range(first, first + seeds)]
    for label, policy, own in cases(name):
        if only not in label:
            continue
        # What trains a set of its own in every slot is dear: fewer slots or trials.
        dear = "stationary" in name and policy in ("random", "quick-init-ucb-paper", CLIMB)
        slots = 30 if dear and policy == "random" else SLOTS
        runs = list[Figures]()
        for k in range(
            min(seeds, {"quick-init-ucb-paper": 20, CLIMB: 10}.get(policy, seeds))
            if dear
            else seeds
        ):
            here = worlds(first + k)
            if policy == CLIMB:
                members = here.climb(tuple(range(IID)))
                run = Played(np.full(slots, here.opinions(members).mean()), [members] * slots)
            else:
                run = here.play(policy, slots, own, shuffled="shuffled" in label)
            runs.append(told(run, best[k]))
        yield line(name, label, runs)


def told(run: Played, best: FloatArray) -> Figures:
    """Return a trial's figures."""
    slots = len(run.opinion)
    last, unit = float(run.opinion[-LAST:].mean()), float(best[-LAST:].mean())
    behind = (best[:slots] - run.opinion).cumsum() / unit
    trained = np.bincount(np.concatenate(run.sets), minlength=20) / slots
    among = [sum(client < IID for client in one) for one in run.sets[-LAST:]]
    at = {level: np.flatnonzero(run.opinion >= level) for level in LEVELS}
    found: Figures = {
        "accuracy": last,
        "gap_percent": 100 * (1 - last / unit),
        "iid_among_five": float(np.mean(among)),
        "sets": float(len(set(run.sets))),
        "iid_share": float(trained[:IID].mean()),
        "other_share": float(trained[IID:].mean()),
        **{f"slots_to_{k:g}": float(v[0]) + 1 if len(v) else None for k, v in at.items()},
        **{f"regret@{t}": float(behind[t - 1]) for t in (20, 50, 100, 200) if t <= slots},
        **{f"opinion@{t}": float(run.opinion[t - 1]) for t in MARKS if t <= slots},
    }
    if run.belief is not None:
        for t in (1, 5, 10, 30):
            if t <= len(run.belief):
                found[f"belief_iid@{t}"] = float(run.belief[t - 1, :IID].mean())
                found[f"belief_other@{t}"] = float(run.belief[t - 1, IID:].mean())
    return found


def growth(members: Members, drawn: bool, seed: int) -> Figures:
    """Fig. 5: the loss within a slot, and opinions slot by slot where the model carries over."""
    here, found = SlotWorld((*PAPER, *FEW), seed), Figures()

    def clients(slot: int) -> IntArray:
        if not drawn:
            return np.array(members)
        rng = np.random.default_rng((seed, slot))
        return np.sort(rng.choice(here.recipe.world.clients, members[0], replace=False))

    one = FederatedLearner(here.recipe, seed)
    for slot in (1, 2):
        opinion = here.slot(one, slot, clients(0))
        found[f"loss@{slot * SLOT}"] = margin_loss(one)
        if slot == 1:
            found["one_slot"] = float(opinion.mean())
    carried = FederatedLearner(here.recipe, seed)
    for slot in range(1, 21):
        opinion = here.slot(carried, slot, clients(slot - 1))
        if slot in MARKS:
            found[f"carried@{slot}"] = float(opinion.mean())
    return found


def margin_loss(learner: FederatedLearner) -> float:
    """Return the mean largest margin violation over all clients' training samples."""
    trainer = learner._trainer  # noqa: SLF001 - only this experiment asks for a training loss
    x, y = trainer._train.x, trainer._train.y  # noqa: SLF001
    assert isinstance(trainer.model, BatchedModel)
    scores = trainer.model.scores(learner.model[None], x[None])[0]
    own = scores[y, np.arange(len(y))]
    rivals = scores + 1.0
    rivals[y, np.arange(len(y))] -= 1.0
    return float((rivals.max(axis=0) - own).mean())


def kinds(seed: int) -> Figures:
    """Return mean opinions of a model just trained: with all labels or not, trained or not."""
    here = SlotWorld(("world.training.samples_per_client=200",), seed)
    learner, rng = FederatedLearner(here.recipe, seed), np.random.default_rng(seed)
    iid = np.arange(here.recipe.world.clients) < IID
    found: dict[str, list[float]] = {}
    for slot in range(1, 61):
        chosen = np.sort(rng.choice(here.recipe.world.clients, IID, replace=False))
        opinion = here.slot(learner, slot, chosen)
        for client in range(len(iid)) if slot > IID else ():
            kind = (
                f"{'iid' if iid[client] else 'other'}_{'trained' if client in chosen else 'waited'}"
            )
            found.setdefault(kind, []).append(float(opinion[client]))
    return {kind: float(np.mean(values)) for kind, values in sorted(found.items())}


def decision_ms(name: str, only: str) -> Iterator[Line]:
    """Yield the median milliseconds of a slot's decision after the cold start, by one thread."""
    for clients in (20, 50, 100, 200, 500, 1000):
        for policy, mu in (("bp-ucb", 3.0), ("quick-init-ucb", 0.3)):
            for size in (5, clients // 4):
                case = f"{policy}, N = {clients}, K = {size}"
                if only in case:
                    yield line(name, case, [{"slot_ms": _slot_ms(policy, clients, size, mu)}])


def _slot_ms(name: str, clients: int, size: int, mu: float) -> float:
    policy = policies.create(name, clients_per_round=size, mu=mu)
    rng = np.random.default_rng(0)
    places, worth = rng.random((clients, 2)).astype(np.float32), rng.uniform(0.4, 0.9, clients)
    took, cold = [], -(-clients // size)
    for t in range(1, cold + 61):
        view = RoundView(
            round=t,
            pair_client=np.arange(clients, dtype=np.int32),
            pair_edge=np.zeros(clients, dtype=np.int32),
            pair_features=places,
            feature_names=("x_km", "y_km"),
            client_price=np.full(clients, 1_000_000, dtype=np.int64),
            client_available=np.ones(clients, dtype=np.bool_),
            edge_budget=np.array([size * 1_000_000], dtype=np.int64),
            # Who trains changes what everybody thinks, as in training.
            opinions=np.clip(rng.normal(worth, 0.02), 0, 1),
        )
        began = time.thread_time()
        pairs = policy.select(view, np.random.default_rng((0, t))).pairs
        decided = time.thread_time() - began
        feedback = outcome(rng, view, pairs)
        began = time.thread_time()
        policy.learn(feedback)
        took.append(1e3 * (decided + time.thread_time() - began))
    return statistics.median(took[cold:])
