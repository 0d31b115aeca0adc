"""`fedagent why`, on a directory that the real store wrote."""

from pathlib import Path

import pytest

from tests.typed import call, last_object


def test_the_round_is_told_in_words_and_as_json(home: Path) -> None:
    text = call(home, "why", "agent-b").stdout
    assert "round 3: device agent-b was selected" in text
    assert "ordered in 3 rounds, in time in 0" in text
    read = last_object(call(home, "why", "agent-b", "--round", "2", "--json"))
    assert (read["round"], read["state"], read["never_delivering"]) == (2, "selected", False)
    assert [order["round"] for order in read["orders"]] == [2, 1]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [(("agent",), "more than one"), (("kitchen",), "agent-a"), (("agent-a", "--round", "9"), "3")],
)
def test_a_wrong_wish_names_what_there_is(
    home: Path, arguments: tuple[str, ...], names: str
) -> None:
    done = call(home, "why", *arguments)
    assert (done.returncode, names in done.stderr) == (43, True)
