"""`fixed`: one named set of clients in every round (GDA: the optimum, if it is known)."""

from collections.abc import Sequence

import numpy as np

from fedagent_coordinator.errors import ParameterError

from .base import IntArray, RoundView, Selection, StatelessPolicy
from .selection import explained
from .slots import take

_NAME = "fixed"


class FixedPolicy(StatelessPolicy):
    """Take the same clients whenever they can be chosen and fit.

    Args:
        clients: Client indices, first choice first. The paper's optimum, its clients
            {1, ..., 5}, is the default: we count from 0.
    """

    needs: frozenset[str] = frozenset()

    def __init__(self, *, clients: Sequence[int] = (0, 1, 2, 3, 4)) -> None:
        self._clients = check_clients(_NAME, "clients", clients)

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:  # noqa: ARG002
        """Decide one round; nobody takes the place of who is missing."""
        clients = self._clients[self._clients < len(view.client_price)]
        return explained(view, take(view, clients, len(clients)))


def check_clients(name: str, parameter: str, clients: Sequence[int]) -> IntArray:
    """Return a set of client indices in its order, int64[S].

    Raises:
        ParameterError: It is empty, or has a negative index or one twice.
    """
    if not clients:
        raise ParameterError(name, parameter, "names nobody")
    if min(clients) < 0 or len(set(clients)) != len(clients):
        raise ParameterError(name, parameter, f"is {list(clients)}: indices >= 0, each once")
    return np.array(clients, dtype=np.int64)
