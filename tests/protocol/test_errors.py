"""Errors are a sentence about their data and a hint, wherever they are raised."""

import copy

import pytest

from fedagent_protocol.errors import FedagentError, PluginError, ProtocolError


@pytest.mark.parametrize(
    "error",
    [
        ProtocolError("payload is 9, the limit is 3", "oversize"),
        PluginError("policy", "mine", "a:B", "failed"),
        FedagentError("in words", "a hint"),
    ],
)
def test_an_error_crosses_processes_whole(error: FedagentError) -> None:
    again = copy.copy(error)  # by its class and `args`, as between processes
    assert type(again) is type(error)
    assert (str(again), again.args, vars(again)) == (str(error), error.args, vars(error))
