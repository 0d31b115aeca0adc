"""Every row of the fault matrix has tests that are there, or the reason why it has none."""

import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
TABLE = tomllib.loads((TESTS / "fault_rows.toml").read_text(encoding="utf-8"))
ROWS: dict[str, list[str]] = TABLE["rows"]
WITHOUT: dict[str, str] = TABLE["without"]
SIZES = {"A": 13, "B": 15, "C": 7, "D": 10, "E": 14, "F": 9, "G": 6, "H": 8, "L": 12}
ALL = {f"{part}{n}" for part, count in SIZES.items() for n in range(1, count + 1)}
ALL |= {f"I{n}r" for n in range(1, 6)}
ENOUGH = 90


@cache
def names_in(file: str) -> set[str]:
    text = (TESTS / file).read_text(encoding="utf-8")
    return set(re.findall(r"^(?:async )?(?:def )?((?:test_|Test)\w+)", text, re.MULTILINE))


def test_every_row_is_there_once() -> None:
    assert len(ALL) == 99
    assert set(ROWS) | set(WITHOUT) == ALL
    assert not set(ROWS) & set(WITHOUT)
    assert len(ROWS) >= ENOUGH


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_of_a_row_are_there(row: str) -> None:
    assert ROWS[row]
    for test in ROWS[row]:
        file, _, name = test.partition("::")
        assert name in names_in(file), test
