"""Which orders were answered, and how: so that no round is trained twice."""

from collections import OrderedDict
from dataclasses import dataclass, field

from fedagent_protocol.messages import Decline

from .effects import Key

REMEMBERED = 64


@dataclass(slots=True)
class OrderHistory:
    """Ranks and answers of the newest orders; bounded.

    An answer is the `Decline` that was sent, or None for an update.
    """

    _newest: OrderedDict[str, int] = field(default_factory=OrderedDict)
    _answers: OrderedDict[Key, Decline | None] = field(default_factory=OrderedDict)

    def newest(self, run: str) -> int:
        """Return the highest round of a run that was ordered; 0 if none was."""
        return self._newest.get(run, 0)

    def note_order(self, key: Key) -> None:
        """Remember that this order was taken."""
        self._newest[key.run] = max(self.newest(key.run), key.round)
        self._newest.move_to_end(key.run)
        _trim(self._newest)

    def note_answer(self, key: Key, answer: Decline | None) -> None:
        """Remember what the edge was told."""
        self._answers[key] = answer
        _trim(self._answers)

    def is_answered(self, key: Key) -> bool:
        """Whether this order had its answer."""
        return key in self._answers

    def decline_of(self, key: Key) -> Decline | None:
        """Return the refusal that answered this order, if it was one."""
        return self._answers.get(key)


def _trim(table: OrderedDict[str, int] | OrderedDict[Key, Decline | None]) -> None:
    while len(table) > REMEMBERED:
        table.popitem(last=False)
