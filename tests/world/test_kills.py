"""Crash points: a normal run comes by each that the code marks, and any of
them may be the last thing a role did. Then deaths at any time, and faults that last.

`make test` draws thirty deaths by the commit's hash, `make test-all` dies all.
"""

import random
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.read import open_reader
from fedagent_edge.core import receipts
from fedagent_testbed.node import Node

from . import World
from .kill_points import POINTS, ROOT
from .kinds import ROUGH, SETS

Make = Callable[..., World]
ELSEWHERE = {
    "standardize": "coordinator/test_standardization.py",
    "standardizing": "coordinator/test_standardization.py",
    "standardized": "coordinator/test_standardization.py",
    "snapshot": "coordinator/test_run_store.py",
    "metrics": "coordinator/test_run_store.py",
    "prune": "coordinator/books/test_archive.py",
    "pruned": "coordinator/books/test_archive.py",
    "compact": "coordinator/books/test_archive.py",
    "extend": "coordinator/test_runs.py",
    "note": "coordinator/test_backup.py",
    "forget": "coordinator/test_run_store.py",
    "state": "agent/trainer/test_device_state.py",
}
"""Steps that no run of these worlds takes, and which tests do."""
KIND_OF = {"opinions": "noisy"}
Kill = tuple[str, int]
HERE = sorted(
    f"{role}.{name}"
    for role, names in POINTS.items()
    for name in names
    if name.partition(".")[0] not in ELSEWHERE
)

_ONCE = ("begin", "end", "ending", "reported-result", "void")
KILLS: list[Kill] = [
    (point, nth)
    for point in HERE
    for nth in (1, 2, 3)
    if nth == 1 or point.split(".")[1] not in _ONCE
]


def test_normal_runs_come_by_every_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    checkpoint = Node.checkpoint

    def note(self: Node, name: str) -> None:
        role = type(self).__name__.removesuffix("Node").lower()
        seen.add(f"{role}.{name.removeprefix(f'{role}.')}")
        checkpoint(self, name)

    monkeypatch.setattr(Node, "checkpoint", note)
    large = ("rounds.count=3", "model.features=27000")
    World(tmp_path / "large", sets=large, chunk_bytes=64 * 1024).run()
    World(tmp_path / "evaluated", kind="evaluated").run()
    monkeypatch.setattr(receipts, "KEEP_S", 0.0)
    World(tmp_path / "killed", sets=("rounds.count=6",)).kill_everybody(1).run()
    private = {f"agent.{name}" for name in POINTS["agent"] if name.partition(".")[0] in KIND_OF}
    assert sorted(seen | private) == HERE


def drawn(cases: list[Kill], count: int) -> set[Kill]:
    """Return the cases that belong to this commit; without git always the same."""
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return set(random.Random(found.stdout.strip()).sample(cases, count))


DRAWN = drawn(KILLS, 30)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param(
            *case, marks=() if case in DRAWN else pytest.mark.nightly, id="-".join(map(str, case))
        )
        for case in KILLS
    ],
)
def test_whoever_dies_wherever_all_invariants_hold(
    world: Make, point: str, nth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, _, name = point.partition(".")
    if name == "spooled":  # these rounds end sooner
        monkeypatch.setattr(receipts, "KEEP_S", 0.0)
    large = "chunk" in name or name.startswith(("model.whole", "books.file", "books.dropped"))
    # The second death at a place is of a rented edge's run, the third of neighbours.
    kind = KIND_OF.get(name.partition(".")[0]) or {2: "placed", 3: "peers"}.get(nth, "plain")
    if kind in KIND_OF.values():
        pytest.importorskip("opendp", reason="opendp is not installed")
    if name.startswith("evaluat"):
        kind = "evaluated"
    here = world(
        kind=kind,
        agents=4,
        edges=2,
        # Agents keep a model of this size in files, and such an update is sent in parts.
        sets=("model.features=27000",) if large else (),
        chunk_bytes=64 * 1024 if large else 1024,
    )
    if name.startswith("void"):
        # Only a restart has anything to give back.
        here.kill("coordinator", after=0.2).kill("edge", after=0.3)
    played = here.kill(role, at=name, nth=nth).run()
    assert nth > 1 or any(played.died.values()), "nobody died"


@pytest.mark.parametrize("kind", SETS)
def test_everybody_dies_thrice_at_any_time(world: Make, world_seed: int, kind: str) -> None:
    here = world(kind=kind, seed=world_seed, faults=ROUGH, edges=2, agents=5)
    here.kill_everybody(world_seed).run(seconds=2000)


@pytest.mark.parametrize(("kind", "point"), [("private", "books.put"), ("noisy", "opinions.kept")])
def test_nothing_private_is_drawn_twice_whoever_is_killed(
    world: Make, world_seed: int, kind: str, point: str
) -> None:
    """The invariant: what left was charged before, and was said once only."""
    pytest.importorskip("opendp", reason="opendp is not installed")
    here = world(kind=kind, seed=world_seed, faults=ROUGH)
    for name in here.here.agents:
        here.kill(name, at=point, nth=1 + world_seed % 2)
    played = here.run(seconds=900)
    assert sum(played.died.values()) >= len(here.here.agents) - 1, "one may be asked once only"


# --------------------------------------------------------------- faults that last

SCHEDULED = ("rounds.count=20", "rounds.every_s=3")


def test_a_coordinator_in_a_crash_loop_loses_nothing_and_goes_on_when_it_ends(
    world: Make, world_seed: int
) -> None:
    here, at = world(sets=SCHEDULED, seed=world_seed), 0.0
    rng = np.random.default_rng(world_seed)
    while at < 60.0:
        at += 0.4 + float(rng.uniform(0.1, 3.0))
        here.kill("coordinator", after=at)
    played = here.run()
    assert played.died["coordinator"] >= 20
    assert played.seconds < 60.0 + 20 * 8.0
    folder = played.here.coordinator.directory
    size = sum(path.stat().st_size for path in folder.glob("*.db*"))
    assert size < 4 << 20, "it grows with rounds, not with starts"


def test_a_flapping_device_holds_nobody_up(world: Make, world_seed: int) -> None:
    here = world(sets=(*SCHEDULED, "rounds.min_updates=1"), seed=world_seed, agents=4)
    for at in range(2, 200, 10):
        here.kill("agent-0", after=float(at), down_s=5.0)
    played = here.run()
    paid = Counter(agent for _, agent in played.ending.paid)
    assert played.died["agent-0"] >= 5
    assert paid["agent-0"] < 20
    assert [paid[f"agent-{i}"] for i in (1, 2, 3)] == [20, 20, 20]


def test_all_edges_die_in_a_round_and_it_is_void_once(world: Make, world_seed: int) -> None:
    here = world(sets=SCHEDULED, seed=world_seed, edges=2, agents=4, train_s=1.0)
    for name in here.here.edges:
        here.kill(name, after=6.4, down_s=20.0)
    played = here.run()
    with open_reader(played.here.coordinator.directory) as read:
        run = read.run().run_id
        silent = Counter(row.round for row in read.outcomes(run) if row.reason == "silent")
        opened = [row.opened_ms for row in read.rounds(run)]
    assert list(silent.values()) == [4], "the one round in which they died"
    assert max(np.diff(opened)) < 40_000


def test_a_policy_sees_who_started_again_also_after_the_coordinator_did(world: Make) -> None:
    here = world(seed=3, sets=("rounds.count=30", "rounds.every_s=1"))
    here.kill("agent-1", after=6.3).kill("coordinator", after=12.2)
    # At the end it is away: what is known of it stays.
    played = here.kill("agent-1", after=20.5, down_s=3.0).run()
    with open_reader(played.here.coordinator.directory) as read:
        run = read.run().run_id
        rows = [row.round for row in read.rounds(run) if row.state == "done"]
        names = [played.here.names[row.agent] for row in read.devices(run)]
        seen = [read.plan(run, number)[0].client_starts for number in rows]
        starts = read.client_starts(run)
    assert starts is not None
    found = dict(zip(names, starts.tolist(), strict=True))
    assert found == {"agent-0": 1, "agent-1": 3, "agent-2": 1}
    told = [one[names.index("agent-1")] for one in seen if one is not None]
    assert len(told) == 30
    assert told == sorted(told)
    assert set(told) == {1, 2, 3}
