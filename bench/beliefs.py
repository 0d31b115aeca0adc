"""Belief propagation: a sweep beside bare numpy and Python loops; errors on small loops.

python -m bench beliefs
"""

import math
import statistics
import time
from collections.abc import Iterator
from itertools import product

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_coordinator.policies.sets.beliefs import Wiring, log_ratio, propagate, wire
from fedagent_coordinator.policies.sets.neighbours import Graph, k_nearest

NODES, EDGES, SWEEPS = 100_000, 400_000, 40
REPEATS = 7
SMALL, SMALL_GRAPHS = 10, 100


def rows() -> Iterator[dict[str, object]]:
    yield sweep()
    yield nearest()
    for local in (False, True):
        yield loops_of_ten(local=local)


def sweep() -> dict[str, object]:
    """A sweep over 100 000 nodes and 400 000 edges: ours and bare numpy by turns, then loops."""
    rng = np.random.default_rng(1)
    wiring = wire(_random_graph(rng))
    opinion = rng.random(NODES)
    own = log_ratio(opinion)
    ours, bare = [], []
    for _ in range(REPEATS):
        start = time.thread_time()
        done = propagate(wiring, opinion, tolerance=-1.0, max_sweeps=SWEEPS)
        middle = time.thread_time()
        _bare(wiring, own, SWEEPS)
        ours.append(1e3 * (middle - start) / done.sweeps)
        bare.append(1e3 * (time.thread_time() - middle) / SWEEPS)
    start = time.thread_time()
    _in_python(wiring, own)
    looped = time.thread_time() - start
    ratio = statistics.median(a / b for a, b in zip(ours, bare, strict=True))
    cpu = statistics.median(ours)
    return {
        "bench": "bp-sweep",
        "nodes": NODES,
        "edges": EDGES,
        "sweep_cpu_ms": round(cpu, 2),
        "bare_cpu_ms": round(statistics.median(bare), 2),
        "python_loops_cpu_ms": round(1e3 * looped, 1),
        "ratio": round(ratio, 2),
        "bar": "20 ms, ratio 1.3",
        "met": cpu <= 20 and ratio <= 1.3,
    }


def nearest() -> dict[str, object]:
    """The four nearest of 100 000 positions, from nothing to beliefs that stand still."""
    rng = np.random.default_rng(2)
    start = time.perf_counter()
    graph = k_nearest("bench", rng.random((NODES, 2)), 4)
    middle = time.perf_counter()
    found = propagate(wire(graph), rng.random(NODES))
    return {
        "bench": "bp-k-nearest",
        "nodes": NODES,
        "edges": len(graph.left),
        "graph_ms": round(1e3 * (middle - start), 1),
        "converge_ms": round(1e3 * (time.perf_counter() - middle), 1),
        "sweeps": found.sweeps,
        "residual": found.residual,
        "contraction": round(found.contraction, 3),
    }


def loops_of_ten(*, local: bool) -> dict[str, object]:
    """How far beliefs are from the exact marginals on graphs of ten clients with loops."""
    errors = []
    for seed in range(SMALL_GRAPHS):
        rng = np.random.default_rng(seed)
        graph = k_nearest("bench", rng.random((SMALL, 2)), 3)
        opinion = rng.random(SMALL)
        wiring = wire(graph, local=local)
        errors.append(np.abs(propagate(wiring, opinion).belief - _exact(wiring, opinion)))
    return {
        "bench": "bp-loops",
        "nodes": SMALL,
        "graphs": SMALL_GRAPHS,
        "weights": "local" if local else "global",
        "mean_error": float(f"{np.mean(errors):.3g}"),
        "worst_error": float(f"{np.max(errors):.3g}"),
    }


def _random_graph(rng: np.random.Generator) -> Graph:
    left, right = rng.integers(0, NODES, (2, EDGES + EDGES // 50))
    pair = np.unique(
        np.stack((np.minimum(left, right), np.maximum(left, right)))[:, left != right], axis=1
    )
    pair = pair[:, rng.permutation(pair.shape[1])[:EDGES]]
    return Graph(NODES, pair[0], pair[1], rng.random(EDGES))


def _bare(wiring: Wiring, own: FloatArray, sweeps: int) -> None:
    message = np.zeros(len(wiring.source))
    half = len(message) // 2
    for _ in range(sweeps):
        heard = own + np.bincount(wiring.target, weights=message, minlength=wiring.nodes)
        inside = heard[wiring.source] - np.roll(message, half)
        message = 2 * np.arctanh(wiring.coupling * np.tanh(0.5 * inside))


def _in_python(wiring: Wiring, own: FloatArray) -> None:
    source, target = wiring.source.tolist(), wiring.target.tolist()
    coupling, heard = wiring.coupling.tolist(), own.tolist()
    message = [0.0] * len(source)
    for e, end in enumerate(target):
        heard[end] += message[e]
    half = len(source) // 2
    new = [0.0] * len(source)
    for e, start in enumerate(source):
        inside = heard[start] - message[e - half]
        new[e] = 2 * math.atanh(coupling[e] * math.tanh(0.5 * inside))


def _exact(wiring: Wiring, opinion: FloatArray) -> FloatArray:
    """Marginals of state 1 over all 2^N states, float64[N]."""
    states = np.array(list(product([0, 1], repeat=len(opinion))), dtype=np.int64)
    square = opinion**2
    weight = np.where(states == 1, square, 1 - square).prod(axis=1)
    for e in range(len(wiring.source) // 2):
        same = states[:, wiring.source[e]] == states[:, wiring.target[e]]
        weight = weight * 0.5 * (1 + np.where(same, 1, -1) * wiring.coupling[e])
    return np.asarray((states * weight[:, np.newaxis]).sum(axis=0) / weight.sum())
