"""Sessions with edges: heartbeat, hello, reports, and what probes measure."""

from collections import Counter
from collections.abc import Callable, Iterator
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
from .effects import EdgesFound, Greet, Relink, Timer

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
    look_at: float | None = None
    """When to see whether what was measured is worth a report."""
    crl_asked_at: float = NEVER
    hello_at: float = NEVER
    hello_again_s: float = HELLO_AGAIN_S / 2
    probe: Probe | None = None
    probed_at: float = NEVER
    rtt_at: float = NEVER

    @property
    def silent_at(self) -> float:
        """When silence ends the session."""
        return self.heard_at + SILENT_PERIODS * self.period_s

    def reconnect(self) -> None:
        """Begin anew, with a hello."""
        self.state, self.probe = SessionState.HELLO, None
        self.hello_again_s = HELLO_AGAIN_S / 2

    def wake(self) -> None:
        """Report as often as where something happens."""
        self.beat_s = self.context_s

    def report_wanted(self, device: DeviceState, now: float) -> bool:
        """Whether it is time to report, or something changed enough."""
        if self.state is not SessionState.OPEN:
            return False
        if self.reported is None or now >= self.reported_at + self.beat_s:
            return True
        if now < self.reported_at + MIN_GAP_S:
            return False
        self.look_at = None
        return device.differs(self.measured, self.reported)

    def look_again(self, now: float) -> None:
        """See whether what was measured is worth a report, as soon as one may go."""
        self.look_at = max(now, self.reported_at + MIN_GAP_S)

    @property
    def report_at(self) -> float:
        """When the next report is due, or something measured is to be looked at."""
        due = self.reported_at + self.beat_s if self.reported is not None else 0.0
        return due if self.look_at is None else min(due, self.look_at)

    @property
    def probe_at(self) -> float:
        """When to probe again: a probe that got lost, or the round trip."""
        if self.probe is not None:
            return self.probed_at + PROBE_AGAIN_S
        return self.rtt_at + RTT_AGAIN_S


Claims = Callable[[str, ContextReport], bytes]
"""Signs the terms in a report to an edge."""


class Sessions(dict[str, Session]):
    """The session with every edge, by its id."""

    def __init__(
        self,
        greeting: Hello,
        device: DeviceState,
        boots: int,
        counters: Counter[str],
        claim: Claims,
    ) -> None:
        super().__init__()
        self._claim = claim
        self._greeting = greeting
        self._device = device
        self._counters = counters
        self._seq = boots << STARTS_BITS
        self._nonce = 0
        self._found: dict[str, tuple[str, ...]] = {}
        self._crl: int | None = None  # number of the list of the revoked; None outside of a site
        self._revoked: set[str] = set()

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
            session.hello_at, session.hello_again_s = now, HELLO_AGAIN_S
        return [Greet(event.link, self._greeting)]

    def link_down(self, event: LinkDown, now: float) -> list[Effect]:
        """Leave it to silence to end the sessions, unless the link comes back."""
        for session in self.on(event.link):
            session.state = SessionState.CUT
            session.heard_at, session.period_s = now, CUT_PERIOD_S
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
        """Send a hello, unless that was just done."""
        if now - session.hello_at < HELLO_AGAIN_S and not at_once:
            return []
        session.hello_at = now
        session.hello_again_s = min(2 * session.hello_again_s, LONGEST_PERIOD_S)
        return [Send(session.edge, self._greeting)]

    def beacon(self, session: Session, beacon: EdgeBeacon, now: float) -> list[Effect]:
        """Note how often an edge promises a beacon, and whether it has restarted."""
        if beacon.edge != session.edge:
            self._counters["beacon_as_another"] += 1
            return []
        session.period_s = _period_s(beacon)
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
        session.period_s = _period_s(welcome)
        if session.state is SessionState.OPEN:
            return None
        session.state, session.reported = SessionState.OPEN, None
        session.wake()
        session.measured.position = welcome.place
        if session.announced:
            return []
        session.announced = True
        fields = {"edge": session.edge, "name": welcome.name, "address": session.link}
        return [Emit("edge_joined", fields)]

    def take_revocations(self, session: Session, message: Revocations) -> list[Effect]:
        """Take a list that was asked for; whether it is the authority's is seen outside."""
        asked = session.crl_asked_at > NEVER
        if not asked or self._crl is None or message.number <= self._crl:
            self._counters["revocations_unasked"] += 1
            return []
        session.crl_asked_at = NEVER
        return [TakeRevocations(message.crl)]

    def revoked(self, revoked: Revoked) -> list[Session]:
        """Go by a list of the revoked; return the sessions that end by it."""
        self._crl = revoked.number
        self._revoked |= revoked.ids
        return [session for session in self.values() if session.edge in revoked.ids]

    def lose(self, session: Session) -> list[Effect]:
        """End a session by silence."""
        del self[session.edge]
        effects: list[Effect] = []
        if session.announced:
            effects.append(Emit("edge_lost", {"edge": session.edge}))
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
        if last is not None and now >= session.reported_at + session.beat_s:
            session.beat_s = min(2 * session.beat_s, LONGEST_PERIOD_S)
        if last is not None and report.available is not last.available:
            session.wake()
        report = structs.replace(
            report,
            claim=self._claim(session.edge, report),
            period_ms=round(1000 * session.beat_s),
        )
        session.reported, session.reported_at, session.look_at = report, now, None
        return report

    def news(self, session: Session, now: float) -> ContextReport | None:
        """Return a report to go with an update; None where the last still holds."""
        last, due = session.reported, session.reported_at + session.beat_s
        if last is None or last.run != session.run or now >= due:
            return self.report(session, now)
        moved = self._device.differs(session.measured, last)
        return self.report(session, now) if moved else None

    def measured(self, now: float, *, forced: bool = False) -> list[Effect]:
        """Report what was measured of the device where that is worth it, or at once if forced."""
        effects: list[Effect] = []
        for session in self.values():
            session.look_again(now)
            effects += self._report_wanted(session, now, forced=forced)
        return effects

    def _report_wanted(self, session: Session, now: float, *, forced: bool = False) -> list[Effect]:
        forced = forced and session.state is SessionState.OPEN
        wanted = session.report_wanted(self._device, now) or forced
        return [Send(session.edge, self.report(session, now))] if wanted else []

    # ------------------------------------------------------------------ probing

    def probe(self, session: Session, now: float) -> list[Effect]:
        """Measure what no transfer has measured, one thing at a time."""
        if session.probe is not None and now >= session.probe_at:
            session.probe = None  # lost
        if session.state is not SessionState.OPEN or session.probe is not None:
            return []
        up = down = 0
        if now >= session.rtt_at + RTT_AGAIN_S:
            session.rtt_at = now
        elif session.measured.download_bps is None:
            down = PROBE_BYTES
        elif session.measured.upload_bps is None:
            up = PROBE_BYTES
        else:
            return []
        self._nonce += 1
        probe = Probe(run=session.run, nonce=self._nonce, reply_bytes=down, data=bytes(up))
        session.probe, session.probed_at = probe, now
        return [Send(session.edge, probe)]

    def probe_reply(self, session: Session, reply: ProbeReply, now: float) -> bool:
        """Note what the probe under way measured; False for a reply to any other."""
        probe = session.probe
        if probe is None or (reply.nonce, len(reply.data)) != (probe.nonce, probe.reply_bytes):
            self._counters["probe_reply_unknown"] += 1
            return False
        session.probe = None
        measured, seconds = session.measured, now - session.probed_at
        bare = max(seconds - (measured.rtt_s or 0.0), seconds / 10)
        if probe.reply_bytes:
            measured.note_download(probe.reply_bytes, bare)
        elif probe.data:
            measured.note_upload(len(probe.data), bare)
        else:
            measured.note_rtt(seconds)
        session.look_again(now)
        return True

    def timers(self, *, probing: bool) -> Iterator[Timer]:
        """Report, and probe unless that would disturb an order."""
        for session in self.values():
            if session.state is SessionState.HELLO:
                yield session.hello_at + session.hello_again_s, partial(self.hello, session)
            if session.state is SessionState.OPEN:
                yield session.report_at, partial(self._report_wanted, session)
                if probing:
                    yield session.probe_at, partial(self.probe, session)


def _period_s(message: EdgeBeacon | Welcome) -> float:
    return min(LONGEST_PERIOD_S, max(MIN_PERIOD_S, message.period_ms / 1000))
