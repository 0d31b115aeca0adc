"""strSAGA: equal to its definition, in numpy and compiled, however it is called."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.learners.strsaga import StrSaga
from fedagent_agent.learners.strsaga_book import Book
from fedagent_agent.learners.strsaga_loops import compiled
from fedagent_task.models import Inputs, Labels, Model, create
from fedagent_task.models.base import Csr
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec
from tests.agent.learners.naive import NaiveStrSaga

WIDTH = 6
KINDS: dict[str, ModelSpec] = {
    "linear": ModelSpec(kind="linear", features=WIDTH),
    "logistic": ModelSpec(kind="logistic", features=WIDTH),
    "softmax": ModelSpec(kind="softmax", features=WIDTH, classes=3),
    "svm": ModelSpec(kind="svm", features=WIDTH),
    "svm-hinge": ModelSpec(kind="svm", features=WIDTH, loss="hinge"),
    "svm-3": ModelSpec(kind="svm", features=WIDTH, classes=3),
    "svm-3-hinge": ModelSpec(kind="svm", features=WIDTH, classes=3, loss="hinge"),
    "mf": ModelSpec(kind="mf", features=2, users=4, items=3, rank=2),
    "mf-many": ModelSpec(kind="mf", features=2, users=40, items=30, rank=2),
}
BACKENDS = [
    pytest.param(False, id="numpy"),
    pytest.param(
        True,
        id="numba",
        marks=pytest.mark.skipif(compiled() is None, reason="numba is not installed"),
    ),
]


@dataclass(frozen=True)
class Case:
    """A stream: model, arrivals of each step, iterations after each."""

    model: Model
    arrivals: list[tuple[Inputs, Labels]]
    iterations: list[int]
    cap: int
    seed: int

    @property
    def spec(self) -> LearnerSpec:
        # No whole number of steps leads to a hinge's kink, where rounding would decide.
        return LearnerSpec(name="strsaga", rate=0.0487, cap=self.cap)

    def learner(self, *, compile_loops: bool) -> StrSaga:
        rng = np.random.default_rng(self.seed)
        learner = StrSaga(self.model, self.spec, rng, compile_loops=compile_loops)
        learner.begin(self.model.init(self.seed))
        return learner

    def played(self, *, compile_loops: bool) -> StrSaga:
        learner = self.learner(compile_loops=compile_loops)
        for (x, y), count in zip(self.arrivals, self.iterations, strict=True):
            learner.absorb(x, y)
            learner.step(count)
        return learner


def _samples(model: Model, rng: np.random.Generator, count: int) -> tuple[Inputs, Labels]:
    spec = model.spec
    if spec.kind == "mf":
        ids = rng.integers(0, (spec.users, spec.items), (count, 2)).astype(np.float32)
        return ids, rng.integers(1, 6, count)
    x = rng.normal(size=(count, spec.features)).astype(np.float32)
    x[rng.random(x.shape) < 0.5] = 0
    y = rng.normal(size=count) if spec.regression else rng.integers(0, spec.num_classes, count)
    return x, y


@st.composite
def cases(draw: st.DrawFn) -> Case:
    spec = KINDS[draw(st.sampled_from(sorted(KINDS)))]
    l2 = draw(st.sampled_from([0.0, 0.5, 19.9 if spec.kind != "mf" else 0.1]))
    model = create(
        ModelSpec(**{name: getattr(spec, name) for name in spec.__struct_fields__} | {"l2": l2})
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    sparse = draw(st.booleans()) and spec.kind != "mf"
    arrivals = []
    for size in sizes:
        x, y = _samples(model, rng, size)
        if sparse and draw(st.booleans()):
            # Samples may change their form within a round.
            assert isinstance(x, np.ndarray)
            x = Csr.from_dense(x)
        arrivals.append((x, y))
    iterations = [draw(st.integers(0, 25)) for _ in sizes]
    return Case(model, arrivals, iterations, draw(st.integers(1, 12)), draw(st.integers(0, 99)))


def _assert_near(now: dict[str, npt.NDArray[np.float64]], then: object) -> None:
    assert isinstance(then, dict)
    for name, tensor in now.items():
        scale = max(1.0, float(np.abs(then[name]).max(initial=0)))
        np.testing.assert_allclose(tensor, then[name], rtol=1e-9, atol=1e-11 * scale)


@pytest.mark.parametrize("compile_loops", BACKENDS)
@settings(max_examples=80)
@given(case=cases())
def test_it_is_what_its_definition_says(compile_loops: bool, case: Case) -> None:
    naive = NaiveStrSaga(case.model, case.spec, np.random.default_rng(case.seed))
    naive.begin(case.model.init(case.seed))
    learner = case.learner(compile_loops=compile_loops)
    for (x, y), count in zip(case.arrivals, case.iterations, strict=True):
        learner.absorb(x, y)
        naive.absorb(x, y)
        done = learner.step(count)
        # An empty learner draws nothing.
        naive.losses.clear()
        if done.iterations:
            naive.step(count)
        assert done.samples == len(naive.losses)
        assert done.loss * done.samples == pytest.approx(sum(naive.losses), rel=1e-9, abs=1e-9)
        _assert_near(learner._table.weights(), naive.weights)


@settings(max_examples=100)
@given(case=cases())
def test_every_sample_is_moved_dropped_or_waiting(case: Case) -> None:
    learner = case.played(compile_loops=False)
    arrived = sum(len(y) for _, y in case.arrivals)
    waiting = learner.default_iterations // 2
    assert arrived == learner.num_samples + learner.dropped + waiting


def test_a_round_begins_with_an_empty_set_and_keeps_its_buffer() -> None:
    model = create(KINDS["logistic"])
    spec = LearnerSpec(name="strsaga", buffer=8)
    learner = StrSaga(model, spec, np.random.default_rng(0), compile_loops=False)
    x, y = _samples(model, np.random.default_rng(1), 10)
    learner.begin(model.init(0))
    learner.absorb(x, y)
    assert learner.dropped == 2
    assert learner.default_iterations == 16
    learner.step(6)
    assert (learner.num_samples, learner.default_iterations) == (3, 10)
    learner.begin(model.init(1))
    assert (learner.num_samples, learner.default_iterations) == (0, 10)
    assert not any(tensor.any() for tensor in learner.update().values())
    learner.step(learner.default_iterations)
    assert (learner.num_samples, learner.default_iterations) == (5, 1)
    assert learner.step(3).iterations == 3


def test_the_set_is_a_uniform_choice_of_what_was_moved() -> None:
    cap, arrived, trials = 4, 20, 4000
    kept = np.zeros(arrived)
    rng = np.random.default_rng(3)
    for _ in range(trials):
        book = Book(cap, None)
        book.offer(arrived)
        moves = book.moves(rng.random((2 * arrived, 3)))
        moved = zip(moves.slot, moves.source, strict=True)
        slots = {slot: source for slot, source in moved if slot >= 0}
        kept[list(slots.values())] += 1
        assert len(slots) == cap == book.size
    expected = trials * cap / arrived
    spread = np.sqrt(expected * (1 - cap / arrived))
    assert np.abs(kept - expected).max() < 4 * spread


@pytest.mark.skipif(compiled() is None, reason="numba is not installed")
@pytest.mark.parametrize("kind", sorted(KINDS))
@pytest.mark.parametrize("sparse", [False, True])
def test_nothing_is_left_to_compile_in_a_training(kind: str, sparse: bool) -> None:
    model = create(KINDS[kind])
    learner = StrSaga(model, LearnerSpec(name="strsaga"), np.random.default_rng(0))
    loops = compiled()
    assert loops is not None
    names = ("plan", "dense_one", "dense_many", "sparse", "factors")
    before = [len(getattr(loops, name).signatures) for name in names]
    learner.begin(model.init(0))
    x, y = _samples(model, np.random.default_rng(0), 9)
    if sparse and kind[:2] != "mf":
        assert isinstance(x, np.ndarray)
        x = Csr.from_dense(x)
    learner.absorb(x, y)
    learner.step(20)
    assert [len(getattr(loops, name).signatures) for name in names] == before


@pytest.mark.parametrize("kind", ["logistic", "mf-many"])
@pytest.mark.parametrize("compile_loops", BACKENDS)
def test_steps_that_outlast_what_is_decided_at_once_are_the_same(
    kind: str, compile_loops: bool
) -> None:
    model = create(KINDS[kind])
    x, y = _samples(model, np.random.default_rng(0), 3000)
    if kind == "logistic":
        assert isinstance(x, np.ndarray)
        x = Csr.from_dense(x)
    weights = []
    for parts in (1, 80):
        rng, spec = np.random.default_rng(5), LearnerSpec(name="strsaga", cap=2000)
        learner = StrSaga(model, spec, rng, compile_loops=compile_loops)
        learner.begin(model.init(0))
        learner.absorb(x, y)
        for _ in range(parts):
            learner.step(10_000 // parts)
        weights.append(learner._table.weights())
    _assert_near(weights[0], weights[1])
