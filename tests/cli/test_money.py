"""Money is in credits wherever a command prints it; only ``..._micro`` is micro-credits."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.typed import call

MICRO = 1_000_000
MONEY = re.compile(r"(spent|paid|price|rent|budget|amount|granted|free|reserved|settled|void)")
SHORT = ("--set", "rounds.count=6", "--set", "world.clients=12")
READERS = (
    ("status",),
    ("status", "--all"),
    ("status", "--rounds", "20"),
    ("devices",),
    ("ledger", "show"),
    ("ledger", "verify"),
)
STUDIES = (
    ("testbed", "run", "cocs-decisions", "--policy", "cheapest", "--seed", "3", *SHORT),
    ("testbed", "run", "cocs-decisions", "--policy", "cheapest", "--seed", "3", *SHORT, "--full"),
    ("testbed", "compare", "cocs-decisions", "--policies", "cheapest", "--seeds", "1", *SHORT),
)


def leaves(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    """Yield every key with a plain value, however deep."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner, key)
    else:
        yield key, value


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_commands_that_read_a_run_name_micro_credits_and_show_credits(
    home: Path, command: tuple[str, ...]
) -> None:
    lines = call(home, *command, "--json").stdout.splitlines()
    found = dict(one for line in lines for one in leaves(json.loads(line)) if MONEY.search(one[0]))
    money = {k: v for k, v in found.items() if type(v) in (int, float)}
    assert money
    for key, value in money.items():
        assert key.endswith("_micro"), key
        assert type(value) is int, key
    # The run paid a credit in each of its rounds: nobody shows it as millions.
    assert "000000" not in call(home, *command).stdout


@pytest.mark.parametrize("command", STUDIES, ids=lambda one: " ".join(one[:2] + one[-1:]))
def test_studies_say_credits(tmp_path: Path, command: tuple[str, ...]) -> None:
    """12 clients ask for 1 to 8 credits, 3 edges pay 3.5 each: 1 to 63 credits in 6 rounds."""
    record = json.loads(call(tmp_path, *command, "--json").stdout.splitlines()[-1])
    policies = record.get("policies", {})
    spent = record["spent"] if "spent" in record else policies["cheapest"]["spent"]["mean"]
    assert 1 < spent <= 63
    assert round(spent * MICRO) == pytest.approx(spent * MICRO, abs=1e-3)


def test_a_whole_federation_says_the_same_to_people_and_to_programs(tmp_path: Path) -> None:
    command = STUDIES[1]
    spent = json.loads(call(tmp_path, *command, "--json").stdout)["spent"]
    told = re.search(r"^spent +([\d.,]+) credits", call(tmp_path, *command).stdout, re.MULTILINE)
    assert told
    assert float(told[1]) == spent
