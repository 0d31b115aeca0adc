"""What rounds add up to is the same however they are cut, also when old ones are closed."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.store import Store
from fedagent_coordinator.books.sums import Sums, sums_of
from fedagent_node.data_dir import load_or_create
from tests.fakes.stored_runs import begun, play, small_plan, small_view

Came = tuple[set[int], set[int]]
"""Whose update came in a round, and of these those in time."""
DEVICES, ROUNDS, CLOSED = 4, 16, 5


def _some(rng: np.random.Generator) -> set[int]:
    return set(np.flatnonzero(rng.random(DEVICES) < 0.6).tolist())


@pytest.mark.parametrize("seed", range(3))
def test_parts_add_up_to_the_whole_and_no_update_is_forgotten(tmp_path: Path, seed: int) -> None:
    rng, came = np.random.default_rng(seed), dict[int, Came]()
    with Store(tmp_path, identity=load_or_create(tmp_path)) as store:
        run = begun(store, total_micro=None, clients=DEVICES).run_id
        for number in range(1, ROUNDS + 1):
            ordered = sorted(_some(rng) | {0})
            paid, late = _some(rng) & set(ordered), _some(rng)
            play(store, run, small_plan(small_view(number, [10] * 4), ordered), paid, late=late)
            came[number] = paid, paid - late
            if number == CLOSED + 1:
                store.snapshot(run, number, "random", {"n": np.array([number])})
        sql = store.read._db
        whole = sums_of(sql, run, 1, ROUNDS)
        for cut in range(1, ROUNDS):
            assert sums_of(sql, run, 1, cut) + sums_of(sql, run, cut + 1, ROUNDS) == whole
        assert Sums() + whole == whole
        agents = dict(sql.execute("SELECT idx, agent_id FROM clients").fetchall())
        assert store.read.paid_updates(run) == _updates(came.values(), agents, 0)
        assert store.prune(run, keep_rounds=ROUNDS - CLOSED, most=99, by="operator").last == CLOSED
        closed = [came[n] for n in range(1, CLOSED + 1)]
        open_ = [came[n] for n in range(CLOSED + 1, ROUNDS + 1)]
        counted = _updates(closed, agents, 1) + _updates(open_, agents, 0)
        assert store.read.paid_updates(run) == counted


def _updates(came: Iterable[Came], agents: dict[int, str], which: int) -> Counter[str]:
    return Counter(agents[client] for one in came for client in one[which])
