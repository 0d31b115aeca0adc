"""Each strategy against a few lines of numpy, flat and over any split of the updates on edges."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedagent_protocol.errors import ParameterError
from fedagent_task import aggregation
from fedagent_task.aggregation import (
    ALL_TRAIN,
    CONTROL,
    Arrays,
    Contribution,
    EdgeShare,
    MergeFacts,
    Rules,
    RunningMean,
    Strategy,
    Sums,
)
from fedagent_task.aggregation.sums import most_steps, rules_of
from fedagent_task.program import Program, encode_program
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec
from tests.fakes.graph_tasks import dense

Floats = npt.NDArray[np.float64]
SIZE = 5


@dataclass(frozen=True)
class Update:
    """What one device sends."""

    delta: Floats
    samples: int
    loss: float
    steps: int
    control: Floats

    def told(self) -> Contribution:
        return Contribution(
            num_samples=self.samples,
            norm=float(np.linalg.norm(self.delta)),
            base_loss=self.loss,
            local_steps=self.steps,
            rate=0.05,
            most_steps=100.0,
        )


def _vector(bound: float = 2.0) -> st.SearchStrategy[Floats]:
    return st.lists(st.floats(-bound, bound, width=32), min_size=SIZE, max_size=SIZE).map(np.array)


UPDATES = st.lists(
    st.builds(
        Update,
        delta=_vector(),
        samples=st.integers(1, 5000),
        loss=st.floats(0.01, 20.0),
        steps=st.integers(1, 60),
        control=_vector(),
    ),
    min_size=1,
    max_size=8,
)
BASE = np.linspace(-1.0, 1.0, SIZE)
RULES = Rules(train=frozenset({"w"}), mean=frozenset({"stats"}), latest=frozenset({"count"}))


def at_edge(
    strategy: Strategy, base: dict[str, Floats], updates: Sequence[Update], controls: bool
) -> tuple[Arrays, EdgeShare]:
    """Return the edge's model and share, as an edge makes them."""
    mean, sums = RunningMean(RULES), Sums()
    for place, one in enumerate(updates):
        weighed = strategy.weigh(one.told())
        delta = {"w": one.delta, "stats": one.delta, "count": np.array([place + 1.0])}
        delta |= {CONTROL + "w": one.control} if controls else {}
        mean.add(delta, weighed.weight, weighed.coefficient)
        sums.add(weighed)
    model = mean.apply(base, strategy.scale(sums))
    return model, EdgeShare(weight=sums.weight, local_steps=sums.local_steps)


def play(strategy: Strategy, parts: Sequence[Sequence[Update]], *, clients: int = 20) -> Arrays:
    """Return the global model after a round over edges with these updates."""
    base = {"w": BASE, "stats": BASE, "count": np.zeros(1)}
    base |= {CONTROL + "w": 0.5 * BASE} if strategy.controls else {}
    models, shares = zip(
        *(at_edge(strategy, base, part, strategy.controls) for part in parts), strict=True
    )
    combined = strategy.combine(shares)
    buffers = combined.buffers or combined.weights
    mean = RunningMean(RULES)
    for model, weight, buffer in zip(models, combined.weights, buffers, strict=True):
        mean.add({k: v - base[k] for k, v in model.items()}, buffer, weight)
    scale = sum(buffers) / sum(combined.weights)
    facts = MergeFacts(
        weight=sum(one.weight for one in shares),
        clients=clients,
        factor=combined.factor,
        rules=RULES,
    )
    return strategy.server(base, mean.apply(base, scale), {}, facts)[0]


def fedavg(updates: Sequence[Update]) -> Floats:
    n = np.array([one.samples for one in updates], float)
    return np.asarray(BASE + n @ np.stack([one.delta for one in updates]) / n.sum())


def fednova(updates: Sequence[Update]) -> Floats:
    p = np.array([one.samples for one in updates], float)
    p /= p.sum()
    tau = np.array([one.steps for one in updates], float)
    return np.asarray(BASE + (p @ tau) * ((p / tau) @ np.stack([u.delta for u in updates])))


def qfedavg(updates: Sequence[Update], q: float = 1.5) -> Floats:
    lipschitz, top, bottom = 1 / 0.05, np.zeros(SIZE), 0.0
    for one in updates:
        grad = -lipschitz * one.delta
        top += one.samples * one.loss**q * grad
        bottom += one.samples * (
            q * one.loss ** (q - 1) * float(grad @ grad) + lipschitz * one.loss**q
        )
    return BASE - top / bottom


def scaffold(updates: Sequence[Update]) -> Floats:
    return np.asarray(BASE + 0.7 * np.mean([one.delta for one in updates], axis=0))


RULES_OF = {
    "fedavg": (fedavg, {}),
    "fedprox": (fedavg, {"mu": 0.1}),
    "fedbn": (fedavg, {}),
    "fednova": (fednova, {}),
    "qfedavg": (qfedavg, {"q": 1.5}),
    "scaffold": (scaffold, {"eta_g": 0.7}),
}


@settings(max_examples=40)
@given(UPDATES, st.sampled_from(sorted(RULES_OF)), st.data())
def test_linear_rules_come_to_the_flat_result_over_any_split(
    updates: list[Update], name: str, data: st.DataObject
) -> None:
    reference, params = RULES_OF[name]
    strategy = aggregation.create(name, **params)
    places = data.draw(st.lists(st.integers(0, 3), min_size=len(updates), max_size=len(updates)))
    parts = [[u for u, p in zip(updates, places, strict=True) if p == e] for e in set(places)]
    want = reference(updates)
    for split in ([updates], parts):
        found = play(strategy, split)
        assert np.allclose(found["w"], want, rtol=1e-6, atol=1e-6)
        if strategy.controls:
            control = np.mean([one.control for one in updates], axis=0)
            wanted = 0.5 * BASE + len(updates) / 20 * control
            assert np.allclose(found[CONTROL + "w"], wanted, atol=1e-9)
        if name in ("fedavg", "fednova"):
            assert np.allclose(found["stats"], fedavg(updates), atol=1e-9)
    assert play(strategy, [updates])["count"] == len(updates)


@settings(max_examples=40)
@given(
    st.lists(_vector(), min_size=1, max_size=6),
    st.sampled_from(["fedavgm", "fedadam", "fedyogi", "fedadagrad"]),
)
def test_server_optimisers_follow_their_papers(means: list[Floats], name: str) -> None:
    eta, b1, b2, tau = 0.3, 0.8, 0.95, 1e-2
    params = {"eta": eta} | (
        {"beta": b1}
        if name == "fedavgm"
        else {"beta1": b1, "tau": tau} | ({} if name == "fedadagrad" else {"beta2": b2})
    )
    strategy = aggregation.create(name, **params)
    x, m, v = BASE.copy(), np.zeros(SIZE), np.full(SIZE, tau**2)
    model: Arrays = {"w": BASE.copy(), "stats": BASE}
    state: Arrays = {}
    for mean in means:
        delta = mean - x
        m = b1 * m + (delta if name == "fedavgm" else (1 - b1) * delta)
        v = {
            "fedavgm": v,
            "fedadam": b2 * v + (1 - b2) * delta**2,
            "fedyogi": v - (1 - b2) * delta**2 * np.sign(v - delta**2),
            "fedadagrad": v + delta**2,
        }[name]
        x = x + (eta * m if name == "fedavgm" else eta * m / (np.sqrt(v) + tau))
        facts = MergeFacts(rules=RULES)
        model, state = strategy.server(model, {"w": mean, "stats": mean}, state, facts)
        assert np.allclose(model["w"], x, rtol=1e-4, atol=1e-4)
        assert np.array_equal(model["stats"], mean)
        x = np.array(model["w"], float)


@given(UPDATES, st.floats(0, 1e300), st.floats(0, 1e300), st.sampled_from(["fednova", "qfedavg"]))
def test_what_a_device_tells_cannot_blow_up_the_sum(
    updates: list[Update], loss: float, steps: float, name: str
) -> None:
    strategy = aggregation.create(name)
    liar = replace(updates[0].told(), base_loss=loss, local_steps=steps)
    weighed = [strategy.weigh(one) for one in [liar, *(u.told() for u in updates[1:])]]
    sums, mean = Sums(), RunningMean()
    for part, one in zip(weighed, updates, strict=True):
        if part.weight:
            sums.add(part)
            mean.add({"w": one.delta}, part.weight, part.coefficient)
    if not sums.weight:
        return
    moved = mean.apply({"w": np.zeros(SIZE)}, strategy.scale(sums))["w"]
    largest = max(float(np.linalg.norm(one.delta)) for one in updates)
    # FedNova: as far as the most steps of the order; q-FedAvg: no further than the largest.
    assert float(np.linalg.norm(moved)) <= (100.0 if name == "fednova" else 1.0) * largest + 1e-9
    assert all(
        part.weight <= strategy.most_weight(max_samples=5000, norm_limit=10.0, rate=0.05) + 1e-6
        for part in weighed
    )


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("fedprox", {"mu": -1.0}),
        ("fedprox", {"mu": "much"}),
        ("fedyogi", {"beta2": 1.0}),
        ("fedavgm", {"momentum": 0.9}),
        ("scaffold", {"eta_g": 0.0}),
    ],
)
def test_parameters_are_strict(name: str, params: dict[str, object]) -> None:
    with pytest.raises(ParameterError):
        aggregation.create(name, **params)


def test_the_roles_of_a_program_are_the_rules_of_its_tensors() -> None:
    plain = dense()
    program = with_a_buffer(plain)
    model = ModelSpec(kind="graph", features=64, classes=10, program=encode_program(program))
    rules = rules_of(model)
    assert rules == Rules(frozenset({"weight"}), frozenset({"bias"}), frozenset())
    assert rules_of(ModelSpec(kind="softmax", features=2, classes=2)) == ALL_TRAIN


def with_a_buffer(program: Program) -> Program:
    """Return the program with a bias that is averaged and not trained."""
    weight, bias = program.tensors
    buffer = structs.replace(bias, role="mean", learnt=False)
    return structs.replace(program, tensors=(weight, buffer))


def test_the_most_steps_of_an_order_are_those_of_its_passes_and_momentum() -> None:
    learner = LearnerSpec(batch=10, buffer=45, passes=3, steps=2, momentum=0.5)
    assert most_steps(learner, 0) == 3 * 5 * 2 * 2
    assert most_steps(learner, 7) == 7 * 5 * 2 * 2
