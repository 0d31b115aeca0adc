"""The named defects of `bench/sabotages.toml` can still be made: rows move with their code."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SABOTAGES = tomllib.loads((ROOT / "bench" / "sabotages.toml").read_text())


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_stands_once_in_its_file(name: str) -> None:
    row = SABOTAGES[name]
    assert (ROOT / row["file"]).read_text().count(row["old"]) == 1
    assert row["old"] != row["new"]
