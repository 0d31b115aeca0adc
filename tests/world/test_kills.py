"""The table of crash points: it names what the code marks, a normal run comes by each, and any of
them may be the last thing a role did.

`make test` draws forty deaths by the commit's hash, `make test-all` dies all.
"""

import random
import re
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from fedagent_protocol.failpoints import POINTS, TRANSACTIONS
from fedagent_testbed.node import Node
from tests.fakes.virtual_world import kill_all
from tests.fakes.virtual_world import world as old_world

from . import World

ROOT = Path(__file__).parents[2]
ELSEWHERE = {
    "standardize": "coordinator/test_standardization.py",
    "standardizing": "coordinator/test_standardization.py",
    "standardized": "coordinator/test_standardization.py",
    "snapshot": "coordinator/test_run_store.py",
    "metrics": "coordinator/test_run_store.py",
    "prune": "coordinator/books/test_pruning.py",
    "pruned": "coordinator/books/test_pruning.py",
    "compact": "coordinator/books/test_pruning.py",
    "extend": "coordinator/test_runs.py",
    "note": "coordinator/books/test_connection.py",
    "forget": "coordinator/test_run_store.py",
    "privacy": "agent/test_privacy_book.py",
    "opinions": "agent/test_evaluator.py",
    "state": "agent/trainer/test_device_state.py",
}
"""Steps that no run of these worlds takes, and which tests do."""
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
    old_world("plain", tmp_path / "large", 1, *large, chunk_bytes=64 * 1024).run()
    old_world("evaluated", tmp_path / "evaluated", 1).run(seconds=900)
    killed = old_world("plain", tmp_path / "killed", 1)
    kill_all(killed, 1)
    killed.run(seconds=900)
    assert sorted(seen) == HERE


def drawn(cases: list[Kill], count: int) -> set[Kill]:
    """Return the cases that belong to this commit; without git always the same."""
    git = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return set(random.Random(found.stdout.strip()).sample(cases, count))


DRAWN = drawn(KILLS, 40)


@pytest.mark.parametrize(
    ("point", "nth"),
    [
        pytest.param(
            *case, marks=() if case in DRAWN else pytest.mark.nightly, id="-".join(map(str, case))
        )
        for case in KILLS
    ],
)
def test_whoever_dies_wherever_all_invariants_hold(tmp_path: Path, point: str, nth: int) -> None:
    deaths = die_at(tmp_path, point, nth)
    assert nth > 1 or deaths, "nobody died"


def die_at(folder: Path, point: str, nth: int, seed: int = 1) -> int:
    """Let a role die at its nth visit of a point; return how often anybody died."""
    role, _, name = point.partition(".")
    large = "chunk" in name or name.startswith(_OF_FILES)
    here = World(
        folder,
        kind="evaluated" if name.startswith("evaluat") else "plain",
        agents=4,
        edges=2,
        seed=seed,
        # Agents keep a model of this size in files, and such an update is sent in parts.
        sets=("model.features=27000",) if large else (),
        chunk_bytes=64 * 1024 if large else 1024,
    )
    if name.startswith("void"):
        # Only a restart has anything to give back.
        here.kill("coordinator", after=0.2).kill("edge", after=0.3)
    played = here.kill(role, at=name, nth=nth).run()
    return sum(played.died.values())


_OF_FILES = ("model.whole", "outbox.file", "outbox.dropped")
