"""Sessions with edges: heartbeat, hello, reports, and what probes measure."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

from msgspec import structs

from fedagent_node.effects import (
    Effect,
    Emit,
    LinkDown,
    LinkUp,
    Revoked,
    Send,
    TakeRevocations,
)
from fedagent_node.timers import Timers
from fedagent_protocol.messages import (
    LONGEST_PERIOD_S,
    SILENT_PERIODS,
    STARTS_BITS,
    Bye,
    ContextReport,
    EdgeBeacon,
    Hello,
    Probe,
    ProbeReply,
    Revocations,
    RevocationsNeed,
    Welcome,
)

from .device import MIN_GAP_S, DeviceState, LinkQuality
from .effects import EdgesFound, Greet, Relink

MAX_SESSIONS = 64
CUT_PERIOD_S = 5.0
"""An edge whose link is down is waited for as if it had promised a heartbeat in this."""
MIN_PERIOD_S = 0.2
HELLO_AGAIN_S = 1.0
"""Doubles up to the longest period until an edge welcomes."""
CRL_AGAIN_S = 10.0
"""How often one edge is asked for a list of the revoked that it says it has."""
PROBE_BYTES = 16 * 1024
PROBE_AGAIN_S = 60.0
"""After this a probe is lost."""
BUSY_AGAIN_S = 1.0
"""A probe that would disturb an order waits this long."""
RTT_AGAIN_S = 900.0
MIN_REPORT_S = 1.0
NEVER = -1e9


class SessionState(Enum):
    """How far the session is."""

    HELLO = "hello"  # heard of, not welcomed
    OPEN = "open"
    CUT = "cut"  # the link is down; silence will end the session


@dataclass(slots=True)
class Session:
    """One edge, as this agent sees it."""

    edge: str
    link: str
    heard_at: float  # a whole message
    state: SessionState = SessionState.HELLO
    run: str = ""  # run of its newest order
    round: int = 0  # that it was at when it welcomed us
    measured: LinkQuality = field(default_factory=LinkQuality)
    period_s: float = 5.0
    context_s: float = 15.0
    beat_s: float = 15.0
    """When the next report comes after the last: longer each time where nothing happens."""
    announced: bool = False
    warned: bool = False  # that something of its orders is not signed
    epoch: str = ""  # which life of the edge the beacons come from
    task: str = ""  # which it named last
    reported: ContextReport | None = None
    reported_at: float = NEVER
    crl_asked_at: float = NEVER
    hello_at: float = NEVER
    hello_again_s: float = HELLO_AGAIN_S / 2
    probe: Probe | None = None
    probed_at: float = NEVER
    rtt_at: float = NEVER

    def reconnect(self) -> None:
        """Begin anew, with a hello."""
        self.state, self.probe = SessionState.HELLO, None
        self.hello_again_s = HELLO_AGAIN_S / 2


Claims = Callable[[str, ContextReport], bytes]
"""Signs the terms in a report to an edge."""


@dataclass(eq=False)
class Sessions(dict[str, Session]):
    """The session with every edge, by its id.

    `lost` is told of a session that silence ends; nothing is probed while the device is `working`.
    """

    _greeting: Hello
    _device: DeviceState
    _boots: int
    _counters: Counter[str]
    _claim: Claims
    _timers: Timers
    _lost: Callable[[str], None]
    _working: Callable[[], bool]
    _nonce: int = 0
    _found: dict[str, tuple[str, ...]] = field(default_factory=dict)
    _crl: int | None = None  # number of the list of the revoked; None outside of a site
    _revoked: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._seq = self._boots << STARTS_BITS

    def open(self, edge: str) -> Session | None:
        """Return the session with an edge if it is open."""
        session = self.get(edge)
        return session if session is not None and session.state is SessionState.OPEN else None

    def in_sight(self, edge: str) -> bool:
        """Return whether an edge has a session, also one that is cut, or an advert names it."""
        return edge in self or any(edge in edges for edges in self._found.values())

    def to_open(self, effects: list[Effect]) -> list[Effect]:
        """Leave out what no open session would take: neighbours repeat themselves."""
        return [
            one
            for one in effects
            if not isinstance(one, Send) or isinstance(one.message, Hello) or self.open(one.to)
        ]

    def link_of(self, edge: str) -> str:
        """Return the name of the link to an edge; empty if there is none."""
        session = self.get(edge)
        return session.link if session is not None else ""

    def on(self, link: str) -> list[Session]:
        """Return the sessions on a link."""
        return [session for session in self.values() if session.link == link]

    # ------------------------------------------------------------- coming, going

    def link_up(self, event: LinkUp, now: float) -> list[Effect]:
        """Greet all edges behind a link; one that comes later beacons at once."""
        for session in self.on(event.link):
            session.reconnect()
            self.hello(session, now, at_once=True)
        return [Greet(event.link, self._greeting)]

    def link_down(self, event: LinkDown, now: float) -> list[Effect]:
        """Leave it to silence to end the sessions, unless the link comes back."""
        for session in self.on(event.link):
            session.state, session.heard_at = SessionState.CUT, now
            self._timers.stop(("hello", session.edge))
            self._promise(session, CUT_PERIOD_S)
        return []

    def edges_found(self, event: EdgesFound, now: float) -> list[Effect]:  # noqa: ARG002 - a handler
        """Note which edges adverts place behind a link."""
        self._found[event.link] = event.edges
        return []

    def hear(
        self, edge: str, link: str, now: float, *, welcomes: bool = False
    ) -> tuple[Session | None, list[Effect]]:
        """Note a sign of life; a silent edge may come back on another link."""
        session = self.get(edge)
        if edge in self._revoked:
            self._counters["edge_revoked"] += 1
            return None, []
        if session is None:
            if len(self) >= MAX_SESSIONS:
                self._counters["too_many_edges"] += 1
                return None, []
            session = self[edge] = Session(edge, link, now)
            self._promise(session, session.period_s)
        elif session.link == link:
            session.heard_at = now
            return session, []
        elif session.state is SessionState.OPEN and now < session.heard_at + 1.5 * session.period_s:
            # The same broker under two addresses: one path is enough.
            self._counters["other_link"] += 1
            return None, []
        session.link, session.heard_at = link, now
        session.reconnect()
        return session, [] if welcomes else self.hello(session, now, at_once=True)

    def hello(self, session: Session, now: float, *, at_once: bool = False) -> list[Effect]:
        """Send a hello, unless that was just done; again until there is a welcome."""
        due = at_once or now - session.hello_at >= HELLO_AGAIN_S
        if due:
            session.hello_at = now
            session.hello_again_s = min(2 * session.hello_again_s, LONGEST_PERIOD_S)
        if session.state is SessionState.HELLO:
            again = partial(self.hello, session, at_once=True)
            when = session.hello_at + max(HELLO_AGAIN_S, session.hello_again_s)
            self._timers.at(("hello", session.edge), when, again)
        return [Send(session.edge, self._greeting)] if due else []

    def _promise(self, session: Session, period_s: float) -> None:
        """Note how often an edge is to be heard of; silence ends the session."""
        session.period_s = min(LONGEST_PERIOD_S, max(MIN_PERIOD_S, period_s))
        silent_at = session.heard_at + SILENT_PERIODS * session.period_s
        self._timers.at(("silent", session.edge), silent_at, partial(self._silent, session))

    def _silent(self, session: Session, now: float) -> list[Effect]:
        if now < session.heard_at + SILENT_PERIODS * session.period_s:
            self._promise(session, session.period_s)
            return []
        return self.lose(session)

    def beacon(self, session: Session, beacon: EdgeBeacon, now: float) -> list[Effect]:
        """Note how often an edge promises a beacon, and whether it has restarted."""
        if beacon.edge != session.edge:
            self._counters["beacon_as_another"] += 1
            return []
        self._promise(session, beacon.period_ms / 1000)
        effects: list[Effect] = []
        if restarted := bool(session.epoch) and beacon.epoch != session.epoch:
            # It has forgotten us, and on a shared broker the link stayed up. Without an epoch it
            # is the same life, and asks for a hello: not more often than any other.
            session.reconnect()
        session.epoch = beacon.epoch or session.epoch
        if session.state is not SessionState.OPEN:
            effects += self.hello(session, now, at_once=restarted and bool(beacon.epoch))
        behind = self._crl is not None and beacon.crl > self._crl
        if behind and now >= session.crl_asked_at + CRL_AGAIN_S:
            session.crl_asked_at = now
            effects.append(Send(session.edge, RevocationsNeed(number=self._crl or 0)))
        return effects

    def welcome(self, session: Session, welcome: Welcome) -> list[Effect] | None:
        """Open the session; None if it was open already."""
        session.round = welcome.round
        session.context_s = max(MIN_REPORT_S, welcome.context_ms / 1000)
        self._promise(session, welcome.period_ms / 1000)
        if session.state is SessionState.OPEN:
            return None
        session.state, session.reported = SessionState.OPEN, None
        session.beat_s = session.context_s
        session.measured.position = welcome.place
        self._timers.stop(("hello", session.edge))
        if session.announced:
            return []
        session.announced = True
        fields = {"edge": session.edge, "name": welcome.name, "address": session.link}
        return [Emit("edge_joined", fields)]

    def take_revocations(self, session: Session, message: Revocations, now: float) -> list[Effect]:  # noqa: ARG002 - a handler
        """Take a list that was asked for; whether it is the authority's is seen outside."""
        asked = session.crl_asked_at > NEVER
        if not asked or self._crl is None or message.number <= self._crl:
            self._counters["revocations_unasked"] += 1
            return []
        session.crl_asked_at = NEVER
        return [TakeRevocations(message.crl)]

    def revoked(self, revoked: Revoked) -> list[Effect]:
        """Go by a list of the revoked: the sessions with those on it end."""
        self._crl = revoked.number
        self._revoked |= revoked.ids
        gone = [session for session in self.values() if session.edge in revoked.ids]
        return [effect for session in gone for effect in self.lose(session)]

    def lose(self, session: Session) -> list[Effect]:
        """End a session that silence or a revocation ends."""
        edge = session.edge
        self._lost(edge)
        del self[edge]
        for what in ("silent", "hello", "report", "probe"):
            self._timers.stop((what, edge))
        effects: list[Effect] = [Emit("edge_lost", {"edge": edge})] if session.announced else []
        if session.state is not SessionState.CUT and not self.on(session.link):
            effects.append(Relink(session.link))
        return effects

    def end(self, reason: str) -> list[Effect]:
        """Close all sessions in good order."""
        opened = [session for session in self.values() if session.state is SessionState.OPEN]
        return [Send(session.edge, Bye(run=session.run, reason=reason)) for session in opened]

    # ---------------------------------------------------------------- reporting

    def report(self, session: Session, now: float) -> ContextReport:
        """Return a report that is about to be sent, and remember it."""
        self._seq += 1
        last = session.reported
        report = self._device.context_report(session.measured, run=session.run, seq=self._seq)
        if last is not None and report.available is not last.available:
            session.beat_s = session.context_s
        elif last is not None and now >= session.reported_at + session.beat_s:
            session.beat_s = min(2 * session.beat_s, LONGEST_PERIOD_S)
        claim, beat_ms = self._claim(session.edge, report), round(1000 * session.beat_s)
        report = structs.replace(report, claim=claim, period_ms=beat_ms)
        session.reported, session.reported_at = report, now
        self._look_at(session, now + session.beat_s)
        return report

    def wake(self, session: Session) -> None:
        """Report as often as where something happens."""
        if session.beat_s > session.context_s:
            session.beat_s = session.context_s
            self._look_at(session, session.reported_at + session.beat_s)

    def news(self, session: Session, now: float) -> ContextReport | None:
        """Return a report to go with an update; None where the last still holds."""
        last = session.reported
        holds = (
            last is not None
            and last.run == session.run
            and now < session.reported_at + session.beat_s
            and not self._device.differs(session.measured, last)
        )
        return None if holds else self.report(session, now)

    def measured(self, now: float, *, forced: bool = False) -> list[Effect]:
        """Report what was measured of the device where that is worth it, or at once if forced."""
        looked = [self.look(session, now, forced=forced) for session in self.values()]
        return [effect for effects in looked for effect in effects]

    def look(self, session: Session, now: float, *, forced: bool = False) -> list[Effect]:
        """Report if it is time, or what was measured is worth it and the last is not just now."""
        if session.state is not SessionState.OPEN:
            return []
        last, at = session.reported, session.reported_at
        if last is not None and now < at + session.beat_s and not forced:
            if now < at + MIN_GAP_S:
                self._look_at(session, at + MIN_GAP_S)
                return []
            if not self._device.differs(session.measured, last):
                self._look_at(session, at + session.beat_s)
                return []
        return [Send(session.edge, self.report(session, now))]

    def _look_at(self, session: Session, when: float) -> None:
        self._timers.at(("report", session.edge), when, partial(self.look, session))

    # ------------------------------------------------------------------ probing

    def probe(self, session: Session, now: float) -> list[Effect]:
        """Measure what no transfer has measured, one thing at a time."""
        if session.probe is not None and now >= session.probed_at + PROBE_AGAIN_S:
            session.probe = None  # lost
        if session.state is not SessionState.OPEN or session.probe is not None:
            return []
        again, measured, up, down = now + PROBE_AGAIN_S, session.measured, 0, 0
        rest = now < session.rtt_at + RTT_AGAIN_S
        if rest and measured.download_bps is not None and measured.upload_bps is not None:
            self._probe_at(session, session.rtt_at + RTT_AGAIN_S)
            return []
        if self._working():
            self._probe_at(session, now + BUSY_AGAIN_S)
            return []
        if not rest:
            session.rtt_at = now
        elif measured.download_bps is None:
            down = PROBE_BYTES
        else:
            up = PROBE_BYTES
        self._nonce += 1
        probe = Probe(run=session.run, nonce=self._nonce, reply_bytes=down, data=bytes(up))
        session.probe, session.probed_at = probe, now
        self._probe_at(session, again)
        return [Send(session.edge, probe)]

    def _probe_at(self, session: Session, when: float) -> None:
        self._timers.at(("probe", session.edge), when, partial(self.probe, session))

    def probe_reply(self, session: Session, reply: ProbeReply, now: float) -> list[Effect]:
        """Note what the probe under way measured, and go on; a reply to any other is counted."""
        probe = session.probe
        if probe is None or (reply.nonce, len(reply.data)) != (probe.nonce, probe.reply_bytes):
            self._counters["probe_reply_unknown"] += 1
            return []
        session.probe = None
        measured, seconds = session.measured, now - session.probed_at
        bare = max(seconds - (measured.rtt_s or 0.0), seconds / 10)
        if probe.reply_bytes:
            measured.note_download(probe.reply_bytes, bare)
        elif probe.data:
            measured.note_upload(len(probe.data), bare)
        else:
            measured.note_rtt(seconds)
        return self.look(session, now) + self.probe(session, now)
