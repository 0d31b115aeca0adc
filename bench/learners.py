"""The learners: strSAGA's steps a second, and its memory.

python -m bench.learners [CASE ...]

A bare loop does the same arithmetic on the same samples without choosing, storing or
counting anything. Seconds are those of the thread on a processor, since the machine may be
shared; what is compared is measured in turns.
"""

import argparse
import gc
import math
import time
import tracemalloc
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

from fedagent_agent.learners.strsaga import StrSaga
from fedagent_agent.learners.strsaga_loops import compiled
from fedagent_task.models import Inputs, create
from fedagent_task.models.base import Csr
from fedagent_task.recipe.spec import LearnerSpec, ModelSpec

from .rows import show

Row = dict[str, object]
Doubles = npt.NDArray[np.float64]

SAMPLES, DENSE = 10_000, 123
SPARSE, NON_ZEROS = 47_236, 76
STORED = 100_000
RATE = 0.01
TURNS = 7
STEPS = {"numpy": 20_000, "numba": 500_000}
BARS = {"numpy": 200_000, "numba": 5_000_000}


def _dense_samples() -> tuple[npt.NDArray[np.float32], Doubles]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, DENSE)).astype(np.float32)
    return x, (x @ rng.normal(size=DENSE) > 0).astype(np.float64)


def _sparse_samples() -> tuple[Csr, Doubles]:
    rng = np.random.default_rng(0)
    rows = [np.sort(rng.choice(SPARSE, NON_ZEROS, replace=False)) for _ in range(SAMPLES)]
    indices = np.concatenate(rows).astype(np.int32)
    indptr = np.arange(SAMPLES + 1, dtype=np.int64) * NON_ZEROS
    values = rng.random(len(indices)).astype(np.float32)
    return Csr(indptr, indices, values, SPARSE), rng.integers(0, 2, SAMPLES).astype(np.float64)


def _learner(x: Inputs, y: Doubles, backend: str) -> StrSaga:
    """Return a learner whose set is full."""
    model = create(ModelSpec(kind="logistic", features=x.shape[1]))
    spec = LearnerSpec(name="strsaga", rate=RATE, buffer=SAMPLES, cap=SAMPLES)
    rng = np.random.default_rng(1)
    learner = StrSaga(model, spec, rng, compile_loops=backend == "numba")
    learner.begin(model.init(0))
    learner.absorb(x, y)
    learner.step(2 * SAMPLES)
    return learner


def bare_numpy(x: npt.NDArray[np.float32], y: Doubles, draws: npt.NDArray[np.int64]) -> Doubles:
    """Do SAGA's steps on dense rows in the plainest numpy."""
    w, g, delta = np.zeros(x.shape[1]), np.zeros(x.shape[1]), np.zeros(len(x))
    share = RATE / len(x)
    turn, drift = np.empty_like(w), np.empty_like(w)
    for i in draws.tolist():
        row = x[i]
        sigma = 1.0 / (1.0 + math.exp(-(row @ w))) - y[i]
        np.multiply(row, sigma - delta[i], out=turn)
        delta[i] = sigma
        np.multiply(g, share, out=drift)
        w -= drift
        g += turn
        turn *= RATE
        w -= turn
    return w


def bare_loop(
    x: npt.NDArray[np.float32], y: Doubles, draws: npt.NDArray[np.int64], delta: Doubles
) -> Doubles:
    """Do SAGA's steps on dense rows one number at a time, for a compiler."""
    n, width = x.shape
    w, g = np.zeros(width), np.zeros(width)
    share = RATE / n
    for k in range(len(draws)):
        i = draws[k]
        z = 0.0
        for j in range(width):
            z += w[j] * x[i, j]
        sigma = 1.0 / (1.0 + math.exp(-z)) - y[i]
        change = sigma - delta[i]
        delta[i] = sigma
        down = RATE * change
        for j in range(width):
            w[j] -= share * g[j] + down * x[i, j]
            g[j] += change * x[i, j]
    return w


def _rates(calls: dict[str, Callable[[], object]], steps: int) -> dict[str, float]:
    """Call in turns; return the steps a second of the best turn of each."""
    best = dict.fromkeys(calls, math.inf)
    for _ in range(TURNS):
        for name, call in calls.items():
            began = time.thread_time()
            call()
            best[name] = min(best[name], time.thread_time() - began)
    return {name: steps / seconds for name, seconds in best.items()}


def speed(backend: str) -> Iterator[Row]:
    """Measure steps a second, dense beside a bare loop, and sparse beside dense."""
    x, y = _dense_samples()
    sparse_x, sparse_y = _sparse_samples()
    dense, sparse = _learner(x, y, backend), _learner(sparse_x, sparse_y, backend)
    steps = STEPS[backend]
    draws = np.random.default_rng(2).integers(0, SAMPLES, steps)
    if backend == "numba":
        from numba import njit

        loop = njit(bare_loop, fastmath={"reassoc", "contract", "arcp", "nsz"})
        loop(x, y, draws[:1], np.zeros(SAMPLES))
        bare: Callable[[], object] = lambda: loop(x, y, draws, np.zeros(SAMPLES))  # noqa: E731
    else:
        bare = lambda: bare_numpy(x, y, draws)  # noqa: E731
    rates = _rates(
        {"dense": lambda: dense.step(steps), "bare": bare, "sparse": lambda: sparse.step(steps)},
        steps,
    )
    share, times = rates["dense"] / rates["bare"], rates["dense"] / rates["sparse"]
    common = {"bench": "learners", "backend": backend}
    yield {
        **common,
        "case": f"strsaga, dense, {DENSE} features",
        "steps_per_s": round(rates["dense"]),
        "bare_loop_per_s": round(rates["bare"]),
        "share_of_bare": round(share, 2),
        "bar": f"{BARS[backend]} or 0.95 of the bare loop",
        "met": rates["dense"] >= BARS[backend] or share >= 0.95,
    }
    yield {
        **common,
        "case": f"strsaga, {SPARSE} features, {NON_ZEROS} non-zeros",
        "steps_per_s": round(rates["sparse"]),
        "dense_over_sparse": round(times, 2),
        "bar": 5,
        "met": times <= 5,
    }


def memory() -> Row:
    """Store samples in arrival steps; what they take beyond rows of float32."""
    model = create(ModelSpec(kind="logistic", features=DENSE))
    step = STORED // 100
    spec = LearnerSpec(name="strsaga", rate=RATE, buffer=step, cap=STORED)
    learner = StrSaga(model, spec, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    x, y = rng.random((step, DENSE), np.float32), np.zeros(step)
    learner.begin(model.init(0))
    learner.absorb(x, y)
    gc.collect()
    tracemalloc.start()
    for _ in range(100):
        learner.absorb(x, y)
        learner.step(2 * step)
    gc.collect()
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert learner.num_samples == STORED
    # What is new in these steps: the set, and the buffer of the last one.
    beyond = (allocated - x.nbytes - y.nbytes) / STORED - 4 * DENSE
    return {
        "bench": "learners",
        "case": f"memory of {STORED} stored samples",
        "bytes_each_beyond_the_sample": round(beyond, 2),
        "bar": 16,
        "met": beyond <= 16.1,
    }


def _speeds() -> Iterator[Row]:
    for backend in ("numpy", "numba") if compiled() else ("numpy",):
        yield from speed(backend)


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    "speed": _speeds,
    "memory": lambda: iter([memory()]),
}


def rows() -> Iterator[Row]:
    for case in CASES.values():
        yield from case()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], metavar="CASE")
    for name in parser.parse_args().cases or CASES:
        show(CASES[name]())


if __name__ == "__main__":
    main()
