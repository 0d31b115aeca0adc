"""The agents an edge can see, and their newest contexts as columns."""

import hashlib
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from fedagent_protocol.errors import safe_text
from fedagent_protocol.messages import (
    MAX_AGENTS,
    MAX_STARTS_AHEAD,
    STARTS_BITS,
    ContextReport,
    DeviceNote,
    Hello,
    RoundColumns,
    RoundOpen,
)

from .columns import Listing, Row, columns_of, most_rows

FRESH_S = 45.0
ANSWER_S = 3.0
"""Within this an agent answers whose connection is said to have broken."""
ASK_AGAIN_S = 15.0
"""Nobody signs that it broke: who says so of one agent all the time costs it little."""

MAX_NAMES = 500
MAX_NOTES = 250
MAX_IDS_BYTES = 350_000
"""One message names all agents: with their rows below the limit of a payload."""
FARTHEST = 1e8
"""A place beyond this, in kilometres, is none."""
LONGEST_S = 30 * 86_400.0
"""Silence is reported as no longer than this."""


@dataclass(slots=True)
class AgentSession:
    """One agent at this edge; `refused` is why its hello was not taken, if it was not.

    One that is `known` has said hello to this process.

    One that is `away` did not answer when its connection had broken: it is chosen for nothing
    new. One that `prepares` reports anew when it hears of another task. After a hello the next
    report counts whatever its number: `greeted`.
    """

    agent: str
    heard_at: float
    context: ContextReport | None = None
    context_at: float = 0.0
    present: bool = True
    away: bool = False
    software: str = ""
    address: str = ""
    refused: str = ""
    prepares: bool = False
    greeted: bool = False
    known: bool = False
    crl_at: float = -math.inf  # when it was sent the list of the revoked
    asked_at: float = -math.inf  # when it was asked whether it is here

    @property
    def reason(self) -> str:
        """Why it does not take part, in words; empty if it does."""
        if self.refused or self.context is None or self.context.available:
            return self.refused
        return safe_text(self.context.reason) or "the device is not ready to train"


@dataclass(slots=True)
class AgentSessions:
    """The agents heard by this process, as many as there is room for.

    Those that messages to the coordinator have named are in a list, `epoch` by name, and stay at
    their index there, also when they have lost their place here. A list that is full is followed
    by one of those who are named then, with another epoch.
    """

    epoch: str
    _by_id: dict[str, AgentSession] = field(default_factory=dict)
    _index: dict[str, int] = field(default_factory=dict)
    _names: dict[str, str] = field(default_factory=dict)
    _unreported: dict[str, None] = field(default_factory=dict)
    _changed: dict[str, None] = field(default_factory=dict)
    _asked: dict[str, float] = field(default_factory=dict)

    def hear(self, agent: str, now: float) -> tuple[AgentSession | None, bool]:
        """Note a sign of life; return the session, None if there is no room, and if it is new."""
        session = self._by_id.get(agent)
        if session is None:
            if len(self._by_id) >= MAX_AGENTS:
                self._forget_gone()
            if len(self._by_id) >= MAX_AGENTS:
                return None, False
            session = self._by_id[agent] = AgentSession(agent, now)
            self._changed[agent] = None
            return session, True
        joined, session.present, session.heard_at = not session.present, True, now
        if joined or session.away:
            self._changed[agent] = None
        session.away = False
        self._asked.pop(agent, None)
        return session, joined

    def has_place(self, agent: str) -> bool:
        """Whether an agent was heard and has not lost its place, here or gone."""
        return agent in self._by_id

    def _forget_gone(self) -> None:
        """Give back the places of those who are gone, once the coordinator was told."""
        gone = {one.agent for one in self._by_id.values() if not one.present}
        for agent in gone - self._changed.keys() - self._unreported.keys():
            del self._by_id[agent]
            self._names.pop(agent, None)
            self._asked.pop(agent, None)

    def name(self, agent: str, name: str) -> bool:
        """Keep what people call an agent; True if that is new."""
        if name == self._names.get(agent, ""):
            return False
        self._names[agent] = name
        self._unreported[agent] = None
        return True

    def greet(self, agent: str, hello: Hello, refused: str) -> bool:
        """Keep what a hello holds of the device; True if that is new."""
        session = self._by_id[agent]
        session.prepares, session.greeted, session.known = hello.prepares, True, True
        facts = safe_text(hello.software, limit=64), safe_text(hello.address, limit=64), refused
        if facts == (session.software, session.address, session.refused):
            return False
        session.software, session.address, session.refused = facts
        self._changed[agent] = None
        return True

    def exclude(self, agent: str, reason: str) -> None:
        """Note why an agent takes no part from now on, whatever it says."""
        session = self._by_id.get(agent)
        if session is not None:
            session.refused, session.context, session.present = reason, None, False
            self._changed[agent] = None

    def welcomed(self) -> None:
        """A coordinator that has just welcomed us needs all of it."""
        self._unreported = dict.fromkeys(self._names)
        self._changed = dict.fromkeys(self._by_id)

    @property
    def has_changes(self) -> bool:
        """Whether there is more about agents than went into the last status."""
        return bool(self._unreported or self._changed)

    def changed_devices(self, now: float) -> tuple[DeviceNote, ...]:
        """Return the agents of which something changed, once; the rest comes next time."""
        some = list(itertools.islice(self._changed, MAX_NOTES))
        for agent in some:
            del self._changed[agent]
        return tuple(self._note(agent, now) for agent in some)

    def _note(self, agent: str, now: float) -> DeviceNote:
        session = self._by_id[agent]
        here = session.present and not session.away
        age_s = 0.0 if here else max(0.0, min(now - session.heard_at, LONGEST_S))
        return DeviceNote(
            agent=agent,
            here=here,
            age_ms=round(1000 * age_s),
            software=session.software,
            address=session.address,
            reason=session.reason,
        )

    def new_names(self) -> dict[str, str]:
        """Return names that were not sent since the welcome, once; the rest comes next time."""
        some = list(self._unreported)[:MAX_NAMES]
        for agent in some:
            del self._unreported[agent]
        return {agent: self._names[agent] for agent in some}

    def context(self, session: AgentSession, report: ContextReport, now: float) -> bool:
        """Keep the newest report; False if its number is damaged, and would end all others."""
        held = session.context
        if held is not None and not session.greeted:
            if report.seq > held.seq + (MAX_STARTS_AHEAD << STARTS_BITS):
                return False
            if report.seq < held.seq:
                return True
        before = _gist(session.reason)
        session.context, session.context_at, session.greeted = report, now, False
        if _gist(session.reason) != before:
            self._changed[session.agent] = None
        return True

    def forget_contexts(self) -> None:
        """Wait for new reports of agents that prepare for another task first."""
        for session in self._by_id.values():
            if session.prepares:
                session.context = None

    def leave(self, agent: str) -> bool:
        """Note that an agent said goodbye; False if it was not here."""
        session = self._by_id.get(agent)
        if session is None or not session.present:
            return False
        session.present, session.context, session.away = False, None, False
        self._changed[agent] = None
        self._asked.pop(agent, None)
        return True

    def doubt(self, agent: str, now: float) -> bool:
        """Return whether an agent whose connection broke is to be asked if it is here, once."""
        session = self._by_id.get(agent)
        if session is None or not session.present or session.away or agent in self._asked:
            return False
        if now < session.asked_at + ASK_AGAIN_S:
            return False
        self._asked[agent] = session.asked_at = now
        return True

    def unanswered(self, now: float) -> list[str]:
        """Return the agents that were asked and are away from now on."""
        lost = [agent for agent, asked_at in self._asked.items() if now >= asked_at + ANSWER_S]
        for agent in lost:
            del self._asked[agent]
            self._by_id[agent].away = True
            self._changed[agent] = None
        return lost

    @property
    def next_answer(self) -> float:
        """When `unanswered` has something to say, if nobody answers."""
        return next(iter(self._asked.values()), math.inf) + ANSWER_S

    def lose_silent(self, now: float) -> list[str]:
        """Return the agents that have become silent for too long."""
        lost = [
            agent
            for agent, session in self._by_id.items()
            if session.present and now - session.heard_at > FRESH_S
        ]
        for agent in lost:
            self.leave(agent)
        return lost

    @property
    def present(self) -> int:
        """Number of agents with a live session."""
        return sum(one.present and not one.away for one in self._by_id.values())

    def is_present(self, agent: str) -> bool:
        """Whether an agent has a live session."""
        session = self._by_id.get(agent)
        return session is not None and session.present

    def present_ids(self) -> list[str]:
        """Return the agents with a live session, in the order in which they came."""
        return [agent for agent, session in self._by_id.items() if session.present]

    def index(self, agent: str) -> int:
        """Return the position of an agent in the list; beyond its end if it is not there."""
        return self._index.get(agent, MAX_AGENTS)

    def place(self, agent: str) -> tuple[float, float] | None:
        """Return x and y in kilometres as the agent last declared them."""
        session = self._by_id.get(agent)
        if session is None or session.context is None:
            return None
        features = session.context.features
        place = features.get("x_km", np.nan), features.get("y_km", np.nan)
        return place if all(abs(value) <= FARTHEST for value in place) else None

    def listing(
        self, epoch: str, known: int, agents: Iterable[str], more: Iterable[str] = ()
    ) -> Listing:
        """Name agents, and return what a message lists for a coordinator that has `known`.

        If not all of the `agents` find a place in the list, another one begins with them;
        `more` are named as far as there is room.
        """
        wanted = dict.fromkeys(itertools.islice(agents, MAX_AGENTS))
        if len(self._index) + len(wanted.keys() - self._index.keys()) > MAX_AGENTS:
            self.epoch = hashlib.sha256(self.epoch.encode()).hexdigest()[:32]
            self._index = {}
            # With an epoch the coordinator forgets who is here.
            self._changed = dict.fromkeys(self._by_id)
        for agent in itertools.chain(wanted, more):
            if len(self._index) < MAX_AGENTS:
                self._index.setdefault(agent, len(self._index))
        ids = list(self._index)
        known = min(known, len(ids)) if epoch == self.epoch else 0
        named = _fitting(ids, known)
        return Listing(known, named, tuple(ids[known:named]))

    def columns(self, ask: RoundOpen, *, model: str, now: float) -> RoundColumns:
        """Answer `open`: every fresh context, and the ids the coordinator lacks.

        What does not fit into one message waits: ids for the next round, and of the
        contexts the oldest.
        """
        fresh = [
            session
            for session in self._by_id.values()
            if session.present
            and not session.away
            and session.context is not None
            and now - session.context_at <= FRESH_S
        ]
        room = most_rows([one.context for one in fresh if one.context is not None])
        if len(fresh) > room:
            fresh = sorted(fresh, key=lambda one: -one.context_at)[:room]
        listing = self.listing(ask.epoch, ask.known, (one.agent for one in fresh))
        rows = [
            Row(index, one.context, one.context_at)
            for one in fresh
            if one.context is not None and (index := self._index[one.agent]) < listing.named
        ]
        return columns_of(ask, self.epoch, listing, rows, model=model, now=now)


def _gist(reason: str) -> str:
    """Return a reason without its numbers, which change with every look."""
    return "".join(c for c in reason if not c.isdigit())


def _fitting(ids: list[str], known: int) -> int:
    room = MAX_IDS_BYTES
    for position in range(known, len(ids)):
        room -= len(ids[position]) + 2
        if room < 0:
            return position
    return len(ids)
