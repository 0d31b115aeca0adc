"""Requests for the newest events of devices, handed on from the coordinator, and the answers."""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import LogNeed, LogTail

from .state import EdgeState

MOST_ASKED = 1024
"""Requests that are remembered; the oldest goes first, as devices need not answer."""


class LogRequests:
    """Which devices were asked, and by which requests."""

    def __init__(self, state: EdgeState) -> None:
        self._state = state
        self._asked: dict[tuple[str, int], None] = {}

    def ask(self, need: LogNeed) -> list[Effect]:
        """Ask a device that is here: the coordinator asks every edge."""
        state = self._state
        if not state.sessions.is_present(need.agent):
            return []
        if len(self._asked) >= MOST_ASKED:
            del self._asked[next(iter(self._asked))]
        self._asked[need.agent, need.number] = None
        return [Send(need.agent, replace(need, run=state.memory.run))]

    def answer(self, agent: str, tail: LogTail) -> list[Effect]:
        """Hand an answer on, once, to who asked for it."""
        if tail.agent != agent or (agent, tail.number) not in self._asked:
            self._state.counters["log_unasked"] += 1
            return []
        del self._asked[agent, tail.number]
        return [Send("", replace(tail, run=self._state.memory.run))]

    def left(self, agent: str) -> None:
        """Forget a device that is gone."""
        self._asked = dict.fromkeys(asked for asked in self._asked if asked[0] != agent)
