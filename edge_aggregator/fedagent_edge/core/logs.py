"""Requests for the newest events of devices, handed on from the coordinator, and the answers."""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import LogNeed, LogTail

from .state import EdgeState

MOST_ASKED = 1024


class LogRequests:
    """Which devices were asked, and by which request."""

    def __init__(self, state: EdgeState) -> None:
        self._state = state
        self._asked: dict[str, int] = {}

    def ask(self, need: LogNeed) -> list[Effect]:
        """Ask a device that is here: the coordinator asks every edge."""
        state = self._state
        if not state.sessions.is_present(need.agent):
            return []
        if need.agent not in self._asked and len(self._asked) >= MOST_ASKED:
            state.counters["logs_many"] += 1
            return []
        self._asked[need.agent] = need.number
        return [Send(need.agent, replace(need, run=state.memory.run))]

    def answer(self, agent: str, tail: LogTail) -> list[Effect]:
        """Hand an answer on, once, to who asked for it."""
        if tail.agent != agent or self._asked.get(agent) != tail.number:
            self._state.counters["log_unasked"] += 1
            return []
        del self._asked[agent]
        return [Send("", replace(tail, run=self._state.memory.run))]

    def left(self, agent: str) -> None:
        """Forget a device that is gone."""
        self._asked.pop(agent, None)
