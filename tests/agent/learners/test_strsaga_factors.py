"""strSAGA on ratings without numba: blocks are what steps one by one are."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_agent.learners.strsaga import StrSaga
from fedagent_agent.learners.strsaga_book import Book, Moves
from fedagent_agent.learners.strsaga_factors import Blocks, blocks
from fedagent_task.models import Model, create
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec
from tests.agent.learners.naive import NaiveStrSaga

Ratings = tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]


@dataclass(frozen=True)
class Stream:
    """A model of ratings, what arrives, and how many iterations follow."""

    model: Model
    arrivals: list[Ratings]
    iterations: list[int]
    spec: LearnerSpec
    seed: int

    def learner(self) -> StrSaga:
        rng = np.random.default_rng(self.seed)
        learner = StrSaga(self.model, self.spec, rng, compile_loops=False)
        learner.begin(self.model.init(self.seed))
        return learner


def _ratings(spec: ModelSpec, rng: np.random.Generator, count: int) -> Ratings:
    # Some are far more frequent than others, as films are.
    ids = (rng.random((count, 2)) ** 2 * (spec.users, spec.items)).astype(np.int64)
    return ids.astype(np.float32), rng.integers(1, 6, count).astype(np.float64)


@st.composite
def streams(draw: st.DrawFn, *, most: int) -> Stream:
    spec = ModelSpec(
        kind="mf",
        features=2,
        users=draw(st.integers(1, 60)),
        items=draw(st.integers(1, 60)),
        rank=draw(st.integers(1, 4)),
        l2=draw(st.sampled_from([0.0, 0.1])),
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    sizes = draw(st.lists(st.integers(0, most), min_size=1, max_size=4))
    return Stream(
        create(spec),
        [_ratings(spec, rng, size) for size in sizes],
        [draw(st.integers(0, 3 * most)) for _ in sizes],
        LearnerSpec(name="strsaga", rate=0.03, cap=draw(st.integers(1, 2 * most))),
        draw(st.integers(0, 99)),
    )


def _assert_equal(now: dict[str, npt.NDArray[np.float64]], then: object, exact: float) -> None:
    assert isinstance(then, dict)
    for name, tensor in now.items():
        np.testing.assert_allclose(tensor, then[name], rtol=exact, atol=exact)


@settings(max_examples=60)
@given(stream=streams(most=25))
def test_blocks_are_what_the_definition_says(stream: Stream) -> None:
    learner = stream.learner()
    naive = NaiveStrSaga(stream.model, stream.spec, np.random.default_rng(stream.seed))
    naive.begin(stream.model.init(stream.seed))
    for (x, y), count in zip(stream.arrivals, stream.iterations, strict=True):
        learner.absorb(x, y)
        naive.absorb(x, y)
        # An empty learner draws nothing.
        if learner.step(count).iterations:
            naive.step(count)
    _assert_equal(learner._table.weights(), naive.weights, 1e-10)


def test_plans_longer_than_what_is_decided_at_once_are_the_same() -> None:
    rng = np.random.default_rng(0)
    spec = ModelSpec(kind="mf", features=2, users=300, items=500, rank=3, l2=0.1)
    stream = Stream(
        create(spec),
        [_ratings(spec, rng, 3000)],
        [10_000],
        LearnerSpec(name="strsaga", rate=0.03, cap=2000),
        3,
    )
    whole, parts = stream.learner(), stream.learner()
    for learner in (whole, parts):
        learner.absorb(*stream.arrivals[0])
    whole.step(10_000)
    for _ in range(80):
        parts.step(125)
    _assert_equal(whole._table.weights(), parts._table.weights(), 1e-10)
    assert any(tensor.any() for tensor in whole.update().values())


@dataclass(frozen=True)
class Plan:
    """Moves, the set before them and the buffer."""

    moves: Moves
    users: int
    kept: npt.NDArray[np.float64]
    pair: npt.NDArray[np.int32]
    y: npt.NDArray[np.float64]

    def cut(self) -> Blocks:
        return blocks(self.moves, self.users, self.kept, self.pair, self.y)

    def replayed(self) -> tuple[list[list[float]], dict[int, list[float]]]:
        """Return what each iteration draws, and what some of them evict."""
        held: list[list[float]] = self.kept.tolist()
        full = self.moves.stored
        drawn: list[list[float]] = []
        evicted: dict[int, list[float]] = {}
        planned = zip(self.moves.source, self.moves.slot, self.moves.draw, strict=True)
        for source, slot, draw in planned:
            if draw < 0:
                continue
            if slot >= 0:
                if slot < full:
                    evicted[len(drawn)] = held[slot]
                full = max(full, slot + 1)
                held[slot] = [*self.pair[source].tolist(), self.y[source]]
            drawn.append(held[draw])
        return drawn, evicted


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    users, items = draw(st.integers(1, 80)), draw(st.integers(1, 80))
    cap, waiting = draw(st.integers(1, 60)), draw(st.integers(0, 60))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    book = Book(cap, None)
    book.offer(draw(st.integers(0, 40)))
    book.moves(rng.random((draw(st.integers(0, 90)), 3)))
    # What is not stored yet may hold anything.
    kept = np.full((cap, 3), np.nan)
    kept[: book.size] = rng.integers(0, (users, items, 6), (book.size, 3))
    book.offer(waiting)
    moves = book.moves(rng.random((draw(st.integers(0, 120)), 3)))
    pair = rng.integers(0, (users, items), (waiting, 2)).astype(np.int32)
    return Plan(moves, users, kept, pair, rng.random(waiting))


@settings(max_examples=200)
@given(plan=plans())
def test_a_plan_draws_and_evicts_what_slots_hold_then(plan: Plan) -> None:
    cut = plan.cut()
    drawn, evicted = plan.replayed()
    behind = np.array((0, plan.users))
    found = np.column_stack((cut.rows - behind, cut.y))
    np.testing.assert_array_equal(found, np.array(drawn).reshape(-1, 3))
    assert cut.evictions.tolist() == list(evicted)
    pairs = [sample[:2] for sample in evicted.values()]
    assert (cut.lost_rows - behind).tolist() == pairs


@settings(max_examples=200)
@given(plan=plans())
def test_blocks_are_as_long_as_rows_differ(plan: Plan) -> None:
    cut = plan.cut()
    covered = [k for start, end in cut.bounds for k in range(start, end)]
    assert covered == list(range(len(cut.draw)))
    lost = dict(zip(cut.evictions.tolist(), cut.lost_rows.tolist(), strict=True))
    slots = dict(zip(cut.stores.tolist(), cut.slots.tolist(), strict=True))

    def fits(start: int, k: int) -> bool:
        used = {row for j in range(start, k) for row in (*cut.rows[j].tolist(), *lost.get(j, ()))}
        filled = {slots[j] for j in range(start, k) if j in slots}
        asked = {*cut.rows[k].tolist(), *lost.get(k, ())}
        return not used & asked and not (k in lost and slots[k] in filled)

    for start, end in cut.bounds:
        assert all(fits(start, k) for k in range(start, end))
        assert end == len(cut.draw) or not fits(start, end)
