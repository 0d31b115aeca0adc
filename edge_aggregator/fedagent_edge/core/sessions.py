"""The agents an edge can see, and their newest contexts as columns."""

import hashlib
import itertools
import math
from collections import Counter, deque
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace

from fedagent_node.effects import CLONED
from fedagent_protocol import messages as m
from fedagent_protocol.columns import Columns, claim_column, claims_in, pack
from fedagent_protocol.errors import safe_text
from fedagent_protocol.signed import CLAIM_BYTES
from fedagent_protocol.transfer import Pace

from .effects import Ignored

LEAST_FRESH_S = 45.0
"""So long an agent may be silent whatever it promised, and no longer where a round waits for it."""
ANSWER_S = 3.0
"""Within this an agent answers whose connection is said to have broken."""
ASK_AGAIN_S = 15.0
"""Nobody signs that it broke: who says so of one agent all the time costs it little."""

MAX_NOTES = 250
MAX_IDS_BYTES = 350_000
"""One message names all agents: with their rows below the limit of a payload."""
FARTHEST = 1e8
"""A place beyond this, in kilometres, is none."""
LONGEST_S = 30 * 86_400.0
"""Silence is reported as no longer than this."""
MAX_FEATURES = 32
MAX_ROWS_BYTES = 600_000
"""With the ids that are named below the limit of a payload."""
FLAPS = 5
"""A link that breaks takes its own place once; two devices take each other's for ever."""
WITHIN_S = 120.0
LEFT_OUT_S = 3 * m.LONGEST_PERIOD_S
"""So long both are left out after the last sign of two: three of the longest heartbeats."""


@dataclass(slots=True)
class AgentSession:
    """One agent at this edge."""

    agent: str
    heard_at: float
    about: m.DeviceNote  # what its hello says of the device
    context: m.ContextReport | None = None
    context_at: float = 0.0
    present: bool = True
    away: bool = False
    """It did not answer when its connection had broken: it is chosen for nothing new."""
    flaps: deque[float] = field(default_factory=lambda: deque(maxlen=FLAPS))
    """When it came while it was connected."""
    cloned_at: float | None = None  # when there were two last; None: there is one
    crl_at: float = -math.inf  # when it was sent the list of the revoked
    asked_at: float = -math.inf  # when it was asked whether it is here
    up: Pace = field(default_factory=Pace)  # what its updates have shown of its link

    @property
    def reason(self) -> str:
        """Why it does not take part, in words; empty if it does."""
        if self.context is None or self.context.available:
            return f"cloned: {CLONED}" if self.cloned_at is not None else ""
        return safe_text(self.context.reason) or "the device is not ready to train"

    @property
    def asked(self) -> bool:
        """Whether it was asked if it is here, and has not been heard since."""
        return self.present and not self.away and self.heard_at < self.asked_at

    def is_fresh(self, now: float) -> bool:
        """Whether its context counts in a round that opens now."""
        known = self.context is not None and now - self.context_at <= self.fresh_s
        return self.present and not self.away and known

    @property
    def fresh_s(self) -> float:
        """How long it may be silent."""
        period_s = self.context.period_ms / 1000 if self.context is not None else 0.0
        return max(LEAST_FRESH_S, m.SILENT_PERIODS * min(period_s, m.LONGEST_PERIOD_S))


@dataclass(slots=True)
class AgentSessions:
    """The agents heard by this process, as many as there is room for.

    Those that messages to the coordinator have named are in a list, `epoch` by name, and stay at
    their index there, also when they have lost their place here. A list that is full is followed
    by one of those who are named then, with another epoch.
    """

    epoch: str
    by_id: dict[str, AgentSession] = field(default_factory=dict)
    _index: dict[str, int] = field(default_factory=dict)
    _changed: dict[str, None] = field(default_factory=dict)
    """Of whom the coordinator has not the newest note."""

    def hear(self, agent: str, now: float) -> tuple[AgentSession, bool]:
        """Note a sign of life; return the session, and whether the agent has just come.

        Raises:
            Ignored: There is no room, or two devices have its identity, or had until lately.
        """
        session = self.by_id.get(agent)
        if session is None:
            if len(self.by_id) >= m.MAX_AGENTS:
                self._forget_gone()
            if len(self.by_id) >= m.MAX_AGENTS:
                raise Ignored("too_many_agents")
            session = self.by_id[agent] = AgentSession(agent, now, m.DeviceNote(agent=agent))
            self._changed[agent] = None
            return session, True
        if session.cloned_at is not None:
            if now < session.cloned_at + LEFT_OUT_S:
                raise Ignored("cloned")
            session.cloned_at, self._changed[agent] = None, None
        joined, session.present, session.heard_at = not session.present, True, now
        if joined or session.away:
            self._changed[agent] = None
        session.away = False
        return session, joined

    def _forget_gone(self) -> None:
        """Give back the places of those who are gone, once the coordinator knows of it."""
        gone = {one.agent for one in self.by_id.values() if not one.present}
        for agent in gone - self._changed.keys():
            del self.by_id[agent]

    def greet(self, session: AgentSession, hello: m.Hello) -> bool:
        """Keep what a hello holds of the device; True if that is new."""
        software, address = (safe_text(one, limit=64) for one in (hello.software, hello.address))
        before, agent = session.about, session.agent
        session.about = m.DeviceNote(
            agent=agent, name=hello.name, software=software, address=address
        )
        if session.about != before:
            self._changed[agent] = None
        return session.about != before

    def is_cloned(self, agent: str, now: float, *, sure: bool) -> bool:
        """Take in that an agent came while it was connected; True if it is left out from now on.

        It is `sure` where two processes of it spoke in turn.
        """
        session = self.by_id.get(agent)
        if session is None:
            return False
        if session.cloned_at is not None:
            session.cloned_at = now
            return False
        session.flaps.append(now)
        often = len(session.flaps) == FLAPS and now - session.flaps[0] <= WITHIN_S
        if not (often or sure):
            return False
        session.cloned_at, session.context, session.present = now, None, False
        self._changed[agent] = None
        return True

    def welcomed(self) -> None:
        """A coordinator that has just welcomed us needs all of it."""
        self._changed = dict.fromkeys(self.by_id)

    @property
    def has_changes(self) -> bool:
        """Whether there is more about agents than went into the last status."""
        return bool(self._changed)

    def changed_devices(self, now: float) -> tuple[m.DeviceNote, ...]:
        """Return the agents of which something changed, once; the rest comes next time."""
        notes = []
        for agent in list(itertools.islice(self._changed, MAX_NOTES)):
            del self._changed[agent]
            session = self.by_id[agent]
            here = session.present and not session.away
            age_s = 0.0 if here else max(0.0, min(now - session.heard_at, LONGEST_S))
            age_ms, reason = round(1000 * age_s), session.reason
            notes.append(replace(session.about, here=here, age_ms=age_ms, reason=reason))
        return tuple(notes)

    def context(self, session: AgentSession, report: m.ContextReport, now: float) -> None:
        """Keep the newest report: they come in order."""
        before = _gist(session.reason)
        session.context, session.context_at = report, now
        if _gist(session.reason) != before:
            self._changed[session.agent] = None

    def forget_contexts(self) -> None:
        """Wait for new reports: agents prepare for another task first."""
        for session in self.by_id.values():
            session.context = None

    def leave(self, agent: str) -> bool:
        """Note that an agent said goodbye; False if it was not here."""
        session = self.by_id.get(agent)
        if session is None or not session.present:
            return False
        session.present, session.context, session.away = False, None, False
        self._changed[agent] = None
        return True

    def doubt(self, agent: str, now: float) -> bool:
        """Return whether an agent whose connection broke is to be asked if it is here, once."""
        session = self.by_id.get(agent)
        if session is None or not session.present or session.away:
            return False
        if now < session.asked_at + ASK_AGAIN_S:
            return False
        session.asked_at = now
        return True

    def unanswered(self, now: float) -> list[str]:
        """Return the agents that were asked and are away from now on."""
        lost = [one for one in self.by_id.values() if one.asked and now >= one.asked_at + ANSWER_S]
        for session in lost:
            session.away = True
            self._changed[session.agent] = None
        return [session.agent for session in lost]

    @property
    def next_answer(self) -> float:
        """When `unanswered` has something to say, if nobody answers."""
        asked = (one.asked_at for one in self.by_id.values() if one.asked)
        return min(asked, default=math.inf) + ANSWER_S

    def lose_silent(self, now: float, awaited: Container[str]) -> list[str]:
        """Return the agents that were silent for too long: who is ordered has time to answer."""
        lost = []
        for agent, session in self.by_id.items():
            asked = agent in awaited and session.away and now >= session.asked_at + ASK_AGAIN_S
            most_s = LEAST_FRESH_S if asked else session.fresh_s
            if session.present and now - session.heard_at > most_s:
                lost.append(agent)
        for agent in lost:
            self.leave(agent)
        return lost

    @property
    def present(self) -> int:
        """Number of agents with a live session."""
        return sum(one.present and not one.away for one in self.by_id.values())

    def is_present(self, agent: str) -> bool:
        """Whether an agent has a live session."""
        session = self.by_id.get(agent)
        return session is not None and session.present

    def present_ids(self) -> list[str]:
        """Return the agents with a live session, in the order in which they came."""
        return [agent for agent, session in self.by_id.items() if session.present]

    def too_slow(self, agent: str, nbytes: int, seconds: float) -> str:
        """Return why an agent's link does not carry a model down and up in time, by its report."""
        session = self.by_id.get(agent)
        features = session.context.features if session is not None and session.context else {}
        rates = [features.get(name, 0.0) for name in ("download_bps", "upload_bps")]
        rates = [rate for rate in rates if rate > 0]
        needs = sum(8 * nbytes / rate for rate in rates)
        if needs <= seconds:
            return ""
        kbit = min(rates) / 1000
        return f"needs {needs:.0f} s at {kbit:.0f} kbit/s, the deadline is {seconds:.0f} s"

    def place(self, agent: str) -> tuple[float, float] | None:
        """Return x and y in kilometres as the agent last declared them."""
        session = self.by_id.get(agent)
        if session is None or session.context is None:
            return None
        features = session.context.features
        place = features.get("x_km", np.nan), features.get("y_km", np.nan)
        return place if all(abs(value) <= FARTHEST for value in place) else None

    # ------------------------------------------------------- lists for messages

    def index(self, agent: str) -> int:
        """Return the position of an agent in the list; beyond its end if it is not there."""
        return self._index.get(agent, m.MAX_AGENTS)

    def listing(
        self, epoch: str, known: int, agents: Iterable[str], more: Iterable[str] = ()
    ) -> tuple[int, int, tuple[str, ...]]:
        """Name agents; return from where on a coordinator lacks ids, how many are named, those ids.

        It has `known` of them. If not all of the `agents` find a place in the list, another one
        begins with them; `more` are named as far as there is room.
        """
        wanted = dict.fromkeys(itertools.islice(agents, m.MAX_AGENTS))
        if len(self._index) + len(wanted.keys() - self._index.keys()) > m.MAX_AGENTS:
            self.epoch = hashlib.sha256(self.epoch.encode()).hexdigest()[:32]
            self._index = {}
            # With an epoch the coordinator forgets who is here.
            self._changed = dict.fromkeys(self.by_id)
        for agent in itertools.chain(wanted, more):
            if len(self._index) < m.MAX_AGENTS:
                self._index.setdefault(agent, len(self._index))
        ids = list(self._index)
        known = min(known, len(ids)) if epoch == self.epoch else 0
        named, room = known, MAX_IDS_BYTES
        while named < len(ids) and (room := room - len(ids[named]) - 2) >= 0:
            named += 1
        return known, named, tuple(ids[known:named])

    def columns(self, ask: m.RoundOpen, *, model: str, now: float) -> m.RoundColumns:
        """Answer `open`: every fresh context, and the ids the coordinator lacks.

        What does not fit into one message waits: ids for the next round, and of the
        contexts the oldest.
        """
        fresh = [one for one in self.by_id.values() if one.is_fresh(now)]
        names = _common_features(fresh)
        row_bytes = 25 + CLAIM_BYTES + 4 * len(names)
        everybody = len(fresh)
        if everybody > (room := MAX_ROWS_BYTES // row_bytes):
            fresh = sorted(fresh, key=lambda one: -one.context_at)[:room]
        known, named, new_ids = self.listing(ask.epoch, ask.known, (one.agent for one in fresh))
        rows = [one for one in fresh if self._index[one.agent] < named]
        contexts = [one.context for one in rows if one.context is not None]
        if len(rows) < everybody:
            names = _common_features(rows)
        values = [[context.features.get(name, np.nan) for name in names] for context in contexts]
        array = np.array(values, np.float64).reshape(len(rows), len(names))
        # What is too large for float32 is as good as unknown.
        array[np.abs(array) > np.finfo(np.float32).max] = np.nan
        columns = Columns(
            features=names,
            session=np.array([self._index[one.agent] for one in rows], np.int32),
            price=np.array([context.price for context in contexts], np.int64),
            context_seq=np.array([context.seq for context in contexts], np.int64),
            age_ms=np.array([(now - one.context_at) * 1000 for one in rows]).astype(np.int32),
            available=np.array([context.available for context in contexts], np.bool_),
            values=array.astype(np.float32),
            claim=claims_in(claim_column([context.claim for context in contexts]), len(rows)),
        )
        return m.RoundColumns(
            run=ask.run,
            round=ask.round,
            epoch=self.epoch,
            known=known,
            new_ids=new_ids,
            features=columns.features,
            model=model,
            **pack(columns),
        )


def _common_features(sessions: Sequence[AgentSession]) -> tuple[str, ...]:
    """Return the features most agents report, so that one agent cannot push them out."""
    known = (one.context.features for one in sessions if one.context is not None)
    counts = Counter(name for features in known for name in features)
    most = sorted(counts, key=lambda name: (-counts[name], name))[:MAX_FEATURES]
    return tuple(sorted(most))


def _gist(reason: str) -> str:
    """Return a reason without its numbers, which change with every look."""
    return "".join(c for c in reason if not c.isdigit())
