"""The sum of a round at an edge: it grows as updates come, and is settled at the close.

Where nothing is shortened, capped or left out it is the sum as it came. What proves too long
waits for the close; what was added and should not have been makes the sum anew, from the disk.
"""

from collections.abc import Callable, Sequence
from functools import partial

from fedagent_protocol.tensors import Buffer, tensor_at
from fedagent_task.aggregation import Arrays, Rules, RunningMean
from fedagent_task.aggregation.bounds import Term
from fedagent_task.aggregation.combining import add, combine, in_order
from fedagent_task.aggregation.robust import Robust
from fedagent_task.secure_aggregation.masked_sum import MaskedSum
from fedagent_task.secure_aggregation.ring import Ring

from .core.admission import locate_again
from .core.effects import UpdateRecord


class RoundSum:
    """The sum, and what is in it; memory of one model.

    Attributes:
        masked: The sum where updates are masked, which nothing else is made of.
    """

    def __init__(self, rules: Rules, ring: Ring | None = None) -> None:
        self.masked = None if ring is None else MaskedSum(ring, rules)
        self._rules = rules
        self._mean = RunningMean(rules)
        self._added: list[tuple[str, Term]] = []

    def admit(self, record: UpdateRecord, data: Buffer) -> None:
        """Add an update that has weight, unless it waits for the close."""
        if record.weight <= 0 or record.aside:
            return
        if self.masked is not None:
            self.masked.add(_tensors(data), record.weight, record.coefficient)
            return
        coefficient = record.weight if record.coefficient is None else record.coefficient
        term = Term(coefficient, record.weight)
        add(self._mean, _tensors(data), term)
        self._added.append((record.agent, term))

    def settle(
        self,
        rule: Robust,
        terms: Sequence[tuple[str, Term]],
        content: Callable[[str], Buffer],
    ) -> RunningMean:
        """Return the sum of these terms, in the order in which their updates came."""
        known = len(self._added)
        if rule.streams:
            wanted = in_order(terms)
            if wanted[:known] == self._added:
                for agent, term in wanted[known:]:
                    add(self._mean, _tensors(content(agent)), term)
                self._added = wanted
                return self._mean
        opened = [(partial(_opened, content, agent), term) for agent, term in terms]
        return combine(rule, opened, self._rules)


def _opened(content: Callable[[str], Buffer], agent: str) -> Arrays:
    return _tensors(content(agent))


def _tensors(data: Buffer) -> Arrays:
    return {item.spec.name: tensor_at(data, item) for item in locate_again(data)}
