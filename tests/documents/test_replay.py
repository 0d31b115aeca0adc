"""The page on replay, typed as it stands."""

import shlex
from pathlib import Path

from tests.typed import call

from .pages import Page

PAGE = Page("docs/replay.md")
LINES = PAGE.takes(
    "fedagent testbed run cocs-decisions --full --policy random --dir field --set world.clients=8"
    " --set world.visible=1 --set rounds.count=80 --set policy.exploration=0.6"
    " --set policy.exploration_bound=100",
    "fedagent replay field --policy cheapest --decisions",
    "fedagent replay field --check",
    "fedagent replay field --policy linucb",
)


def test_a_study_that_explores_is_replayed(tmp_path: Path) -> None:
    done = [call(tmp_path, *shlex.split(line)[1:]) for line in LINES]
    assert [one.returncode for one in done] == [0] * len(LINES)
    _, decisions, check, estimate = (one.stdout for one in done)
    assert "80 rounds decided by cheapest" in decisions
    assert "80 of them as they were recorded, bit for bit" in check
    assert "doubly robust" in estimate
