"""The table of crash points: it names what the code marks, a normal run comes by each, and any of
them may be the last thing a role did.

`python -m bench.faults` dies at each of them with 20 seeds.
"""

import re
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.reader import open_reader
from fedagent_coordinator.runs import RunFinishedError
from fedagent_protocol.failpoints import POINTS, TRANSACTIONS
from fedagent_testbed.node import Node
from tests.fakes.virtual_world import check, kill_all, world

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "standardize": "coordinator/test_standardization.py",
    "standardizing": "coordinator/test_standardization.py",
    "standardized": "coordinator/test_standardization.py",
    "snapshot": "coordinator/test_run_store.py",
    "metrics": "coordinator/test_run_store.py",
    "prune": "coordinator/database/test_pruning.py",
    "pruned": "coordinator/database/test_pruning.py",
    "compact": "coordinator/database/test_pruning.py",
    "extend": "coordinator/test_runs.py",
    "note": "coordinator/database/test_connection.py",
    "forget": "coordinator/test_run_store.py",
    "privacy": "agent/test_privacy_book.py",
    "opinions": "agent/test_evaluator.py",
    "state": "agent/trainer/test_device_state.py",
}
"""Steps that no run of these worlds takes, and which tests do."""
HERE = sorted(
    f"{role}.{name}"
    for role, names in POINTS.items()
    for name in names
    if name.partition(".")[0] not in ELSEWHERE
)


def test_the_table_names_what_the_code_marks() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for role, folder in (
        ("coordinator", "coordinator"),
        ("edge", "edge_aggregator"),
        ("agent", "agent"),
    ):
        text = "".join(path.read_text() for path in sorted((ROOT / folder).rglob("*.py")))
        names = re.findall(r"(?:\bMark|heckpoint)\(\"([\w.-]+)\"\)", text)
        found[role] |= {name.removeprefix(f"{role}.") for name in names}
        found["transactions"] |= set(re.findall(r"\.transaction\(\"([\w-]+)\"\)", text))
    assert found.pop("transactions") == set(TRANSACTIONS)
    steps = {f"{one}.{step}" for one in TRANSACTIONS for step in _STEPS}
    assert dict(found) == {
        role: set(names) - (steps if role == "coordinator" else set())
        for role, names in POINTS.items()
    }


_STEPS = ("before-commit", "committed", "marked")


@pytest.mark.parametrize("where", sorted(set(ELSEWHERE.values())))
def test_where_else_a_point_is_hit_is_there(where: str) -> None:
    text = (ROOT / "tests" / where).read_text()
    names = [name for name, file in ELSEWHERE.items() if file == where]
    assert any(name.removesuffix("ing").removesuffix("ed") in text for name in names)


def test_normal_runs_come_by_every_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[str] = set()
    checkpoint = Node.checkpoint

    def note(self: Node, name: str) -> None:
        role = type(self).__name__.removesuffix("Node").lower()
        seen.add(f"{role}.{name.removeprefix(f'{role}.')}")
        checkpoint(self, name)

    monkeypatch.setattr(Node, "checkpoint", note)
    large = ("rounds.count=3", "model.features=27000")
    world("plain", tmp_path / "large", 1, *large, chunk_bytes=64 * 1024).run()
    world("evaluated", tmp_path / "evaluated", 1).run(seconds=900)
    killed = world("plain", tmp_path / "killed", 1)
    kill_all(killed, 1)
    killed.run(seconds=900)
    assert sorted(seen) == HERE


def die_at(folder: Path, point: str, seed: int) -> int:
    """Let a role die at a point, in its first or second visit; return how often it did."""
    role, _, name = point.partition(".")
    kind = "evaluated" if name.startswith("evaluat") else "plain"
    # Agents keep a model of this size in files, and such an update is sent in parts.
    sets = ("model.features=27000",) if "chunk" in name or name.startswith(_OF_FILES) else ()
    size = {"chunk_bytes": 64 * 1024} if sets else {}
    here = world(kind, folder, seed, "rounds.count=3", *sets, edges=2, agents=4, **size)
    rng = np.random.default_rng(seed)
    who = {"coordinator": "coordinator", "edge": "edge-0", "agent": "agent-0"}[role]
    visit = 1 if name.startswith(_ONCE) else int(rng.integers(1, 3))
    here.kill_at(who, {name if role == "coordinator" else point: visit})
    if name.startswith("void"):
        # Only a restart has anything to give back.
        here.kill_after("coordinator", float(rng.uniform(0.05, 0.4)))
        here.kill_after("edge-0", float(rng.uniform(0.05, 0.4)))
    try:
        check(here, here.run(seconds=900))
    except RunFinishedError as over:
        # It died after the last word, and has nothing to go on with.
        with open_reader(here.coordinator.directory) as read:
            assert read.ledger.verify().balanced
            states = [row.state for row in read.rounds(over.run_id)]
        assert states.count("done") == 3
    return sum(node.restarts for node in here.nodes.values())


_ONCE = ("begin", "end", "reported-result", "void")
_OF_FILES = ("model.whole", "outbox.file", "outbox.dropped")


@pytest.mark.parametrize("point", HERE[::9])
def test_whoever_dies_wherever_the_books_balance(
    tmp_path: Path, world_seed: int, point: str
) -> None:
    die_at(tmp_path, point, world_seed)
