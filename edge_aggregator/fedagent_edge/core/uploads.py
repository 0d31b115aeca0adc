"""Credit for updates on their way in: all clients together have at most a pool of it."""

import math

from fedagent_node.effects import Effect, Send
from fedagent_node.timers import Timers
from fedagent_protocol.messages import Need
from fedagent_protocol.transfer import CreditPool, Layout, Pace, Receiver

from .round import Client

LONGEST_REST_S = 15.0


class Uploads:
    """The transfers of a round's updates."""

    def __init__(self, limit_bytes: int, timers: Timers) -> None:
        self.pool = CreditPool(limit_bytes)
        self._timers = timers
        self._active: dict[str, Client] = {}
        self._waiting: dict[str, float] = {}
        """When those without credit ask for some, the first first; 0: as soon as there is some."""

    def in_advance(self, client: Client, nbytes: int) -> int:
        """Return the chunks an order may grant: one of `nbytes`, or none.

        Half of the pool stays for transfers under way: agents that died with an
        order must not bring the others to a stop.
        """
        client.credit_bytes = 0
        self._book(client)
        if self.pool.used_bytes + nbytes > self.pool.limit_bytes // 2:
            return 0
        client.credit_bytes = nbytes
        self._book(client)
        return 1

    def begin(self, client: Client, pace: Pace) -> None:
        """Begin with a client's update, of which there may be chunks, at the pace of its link."""
        assert client.offer is not None
        assert client.work is not None
        layout = Layout(client.offer.size, client.offer.chunk_bytes)
        client.receiver, client.stalls = Receiver(layout, pace, client.work.have), 0
        client.credit_bytes = 0
        self._book(client)
        self._active[client.agent] = client

    def accept(self, client: Client, index: int, length: int, now: float) -> bool:
        """Note a chunk; False if it was here already. Raises `ProtocolError` if it does not fit."""
        receiver = client.receiver
        assert receiver is not None
        fresh = receiver.accept(index, length, now)
        self._book(client)
        if fresh:
            client.stalls = 0
            self._waiting.pop(client.agent, None)
        return fresh

    def take_back(self, client: Client) -> None:
        """Take back what may have been lost with a connection."""
        if client.receiver is not None:
            client.receiver.forget_credit()
        self._waiting.pop(client.agent, None)
        self._book(client)

    def end(self, client: Client) -> None:
        """Give back the credit of a transfer that is complete or over."""
        client.credit_bytes = 0
        self.take_back(client)
        self._active.pop(client.agent, None)

    def grant(self, client: Client, now: float) -> list[Effect]:
        """Give this client credit as far as the pool has some, then those who wait."""
        return self._ask(client, now) + self.grant_waiting(now)

    def grant_waiting(self, now: float) -> list[Effect]:
        """Give those credit who wait for some, as far as the pool has it."""
        effects: list[Effect] = []
        for agent in [agent for agent, at in self._waiting.items() if not at]:
            client = self._active[agent]
            if not self.pool.chunks(_chunk_bytes(client)):
                break
            effects += self._ask(client, now)
        return effects

    def _silent(self, now: float) -> list[Effect]:
        """Ask again after silence, ever more patiently."""
        effects: list[Effect] = []
        for agent, client in self._active.items():
            receiver = client.receiver
            if receiver is None or receiver.due is None or now < receiver.due:
                continue
            client.stalls += 1
            if client.stalls % 2:
                effects += self._ask(client, now)
                continue
            # Silent twice: others may use its credit.
            self.take_back(client)
            self._waiting[agent] = now + min(LONGEST_REST_S, 0.5 * 2**client.stalls)
        for agent, at in list(self._waiting.items()):
            if now >= at:
                self._waiting[agent] = 0.0
                effects += self._ask(self._active[agent], now)
        receivers = [one.receiver for one in self._active.values() if one.receiver is not None]
        dues = [one.due for one in receivers if one.due is not None]
        rests = [at for at in self._waiting.values() if at]
        self._timers.at("uploads", min([*dues, *rests], default=math.inf), self._silent)
        return effects

    def _ask(self, client: Client, now: float) -> list[Effect]:
        agent, receiver, offer = client.agent, client.receiver, client.offer
        if agent not in self._active or receiver is None or offer is None:
            return []
        if self._waiting.get(agent):
            return []
        room = self.pool.chunks(_chunk_bytes(client))
        ranges = receiver.ask(now, allowance=room)
        self._book(client)
        if receiver.outstanding or receiver.complete:
            self._waiting.pop(agent, None)
        else:
            self._waiting[agent] = 0.0
        if receiver.due is not None:  # also sooner than before: what came has ended a silence
            self._timers.sooner("uploads", receiver.due, self._silent)
        if not ranges:
            return []
        run, number, _ = client.key
        return [Send(agent, Need(run=run, round=number, digest=offer.digest, ranges=ranges))]

    def _book(self, client: Client) -> None:
        nbytes = client.credit_bytes
        if client.receiver is not None:
            nbytes += client.receiver.outstanding * _chunk_bytes(client)
        self.pool.take(nbytes - client.booked_bytes)
        client.booked_bytes = nbytes


def _chunk_bytes(client: Client) -> int:
    assert client.offer is not None
    return min(client.offer.chunk_bytes, client.offer.size)
