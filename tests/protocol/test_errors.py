"""Errors are a sentence about their data and a hint, wherever they are raised."""

import copy
from collections.abc import Collection

import pytest

from fedagent_protocol.errors import FedagentError, OversizeError, PluginError


class LostError(FedagentError):
    template = "{shout} has lost {names} of run {run:.3}"

    who: str
    names: Collection[int]
    run: str

    @property
    def shout(self) -> str:
        return self.who.upper()


class TenError(LostError):
    template = "{names:2} and {run!r}"
    hint = "look again"


class AdvisedError(FedagentError):
    template = "{what} is wrong"

    what: str
    hint: str


def test_the_sentence_is_made_of_data_properties_and_items_of_collections() -> None:
    assert str(LostError("edge", (3, 1), "abcdef")) == "EDGE has lost 3, 1 of run abc"
    assert str(LostError("edge", [], "abcdef")) == "EDGE has lost none of run abc"
    ten = TenError("edge", [5, 6, 7], "r")
    assert (ten.sentence, str(ten)) == ("5, 6 and 'r'", "5, 6 and 'r'; look again")


def test_a_hint_can_be_data_and_may_be_left_out() -> None:
    assert str(AdvisedError("this", "fix it")) == "this is wrong; fix it"
    assert str(AdvisedError("this", "")) == "this is wrong"


@pytest.mark.parametrize(
    "error",
    [
        OversizeError("payload", 9, 3),
        TenError(who="edge", names=(1,), run="r"),
        PluginError("policy", "mine", "a:B", "failed"),
        FedagentError("in words", 3),
    ],
)
def test_an_error_crosses_processes_whole(error: FedagentError) -> None:
    again = copy.copy(error)  # by its class and `args`, as between processes
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
