"""Money is in credits wherever a command prints it; only ``..._micro`` is micro-credits."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.typed import call

MONEY = re.compile(r"(spent|paid|price|rent|budget|amount|granted|free|reserved|settled|void)")
READERS = (
    ("status",),
    ("status", "--all"),
    ("status", "--rounds", "20"),
    ("devices",),
    ("ledger", "show"),
    ("ledger", "verify"),
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
