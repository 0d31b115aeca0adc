"""The session with one edge: heartbeat, hello, reports, and what probes measure."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from fedagent_node.effects import Effect, Send
from fedagent_protocol.messages import ContextReport, Hello, Probe, ProbeReply

from .device import MIN_GAP_S, DeviceState, LinkQuality

SILENT_PERIODS = 3
MIN_PERIOD_S = 0.2
MAX_PERIOD_S = 60.0
HELLO_AGAIN_S = 1.0
PROBE_BYTES = 16 * 1024
PROBE_AGAIN_S = 60.0
MIN_REPORT_S = 1.0
_RETIRED_RUNS = 8


class SessionState(Enum):
    """How far the session is."""

    HELLO = "hello"  # heard of, not welcomed
    OPEN = "open"
    CUT = "cut"  # the link is down; silence will end the session


@dataclass(slots=True)
class _Probe:
    nonce: int
    at: float
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(slots=True)
class Session:
    """One edge, as this agent sees it."""

    edge: str
    link: str
    """Where its messages come from and go to."""
    heard_at: float
    state: SessionState = SessionState.HELLO
    run: str = ""
    """Run of its newest order."""
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=_RETIRED_RUNS))
    """Runs that it served before; their messages are outdated."""
    measured: LinkQuality = field(default_factory=LinkQuality)
    period_s: float = 5.0
    context_s: float = 15.0
    announced: bool = False
    """Whether an event named it as joined."""
    epoch: str = ""
    """Which life of the edge the beacons come from."""
    _hello_at: float = -1e9
    _reported: ContextReport | None = None
    _reported_at: float = -1e9
    _look_at: float | None = None
    _probe: _Probe | None = None
    _nonce: int = 0
    _rtt_at: float = -1e9

    @property
    def silent_at(self) -> float:
        """When silence ends the session."""
        return self.heard_at + SILENT_PERIODS * self.period_s

    @property
    def link_silent_at(self) -> float:
        """When another link may take the edge over."""
        return self.heard_at + 1.5 * self.period_s

    def beacon(self, period_ms: int, epoch: str) -> None:
        """Note how often the edge promises a beacon, and whether it has restarted."""
        self.period_s = min(MAX_PERIOD_S, max(MIN_PERIOD_S, period_ms / 1000))
        if self.epoch and epoch != self.epoch:
            # It has forgotten us, and on a shared broker the link stayed up.
            self.reconnect()
        self.epoch = epoch

    def hello(self, greeting: Hello, now: float) -> list[Effect]:
        """Send a hello, unless that was just done."""
        if now - self._hello_at < HELLO_AGAIN_S:
            return []
        self._hello_at = now
        return [Send(self.edge, greeting)]

    def reconnect(self) -> None:
        """Begin anew on a new link, with a hello."""
        self.state = SessionState.HELLO
        self._hello_at = -1e9
        self._probe = None

    def welcomed(self, context_ms: int) -> bool:
        """Open the session; False if it was open already."""
        fresh = self.state is not SessionState.OPEN
        self.state = SessionState.OPEN
        self.context_s = max(MIN_REPORT_S, context_ms / 1000)
        if fresh:
            self._reported = None
        return fresh

    def enter_run(self, run: str) -> None:
        """Note the run that the edge serves from now on."""
        if self.run and run != self.run:
            self.retired.append(self.run)
        self.run = run

    # -------------------------------------------------------------- reporting

    def report(self, device: DeviceState, seq: int, now: float) -> ContextReport:
        """Return a report that is about to be sent, and remember it."""
        self._reported = device.report(self.measured, run=self.run, seq=seq)
        self._reported_at, self._look_at = now, None
        return self._reported

    def report_wanted(self, device: DeviceState, now: float) -> bool:
        """Whether it is time to report, or something changed enough."""
        if self.state is not SessionState.OPEN:
            return False
        if self._reported is None or now >= self._reported_at + self.context_s:
            return True
        if now < self._reported_at + MIN_GAP_S:
            return False
        self._look_at = None
        return device.differs(self.measured, self._reported)

    def look_again(self, now: float) -> None:
        """See whether what was measured is worth a report, as soon as one may go."""
        self._look_at = max(now, self._reported_at + MIN_GAP_S)

    @property
    def report_at(self) -> float:
        """When the next report is due, or something measured is to be looked at."""
        due = self._reported_at + self.context_s if self._reported is not None else 0.0
        return due if self._look_at is None else min(due, self._look_at)

    # ---------------------------------------------------------------- probing

    def probe(self, now: float) -> list[Effect]:
        """Measure what no transfer has measured, one thing at a time."""
        if self._probe is not None and now >= self._probe.at + PROBE_AGAIN_S:
            self._probe = None  # lost
        if self.state is not SessionState.OPEN or self._probe is not None:
            return []
        up = down = 0
        if now >= self._rtt_at + PROBE_AGAIN_S:
            self._rtt_at = now
        elif self.measured.download_bps is None:
            down = PROBE_BYTES
        elif self.measured.upload_bps is None:
            up = PROBE_BYTES
        else:
            return []
        self._nonce += 1
        self._probe = _Probe(self._nonce, now, up, down)
        message = Probe(run=self.run, nonce=self._nonce, reply_bytes=down, data=bytes(up))
        return [Send(self.edge, message)]

    def probe_reply(self, reply: ProbeReply, now: float) -> bool:
        """Note what the probe under way measured; False for a reply to any other."""
        probe = self._probe
        if probe is None or reply.nonce != probe.nonce or len(reply.data) != probe.down_bytes:
            return False
        self._probe = None
        seconds = now - probe.at
        bare = max(seconds - (self.measured.rtt_s or 0.0), seconds / 10)
        if probe.down_bytes:
            self.measured.note_download(probe.down_bytes, bare)
        elif probe.up_bytes:
            self.measured.note_upload(probe.up_bytes, bare)
        else:
            self.measured.note_rtt(seconds)
        self.look_again(now)
        return True

    @property
    def probe_at(self) -> float:
        """When `probe` is wanted again."""
        if self._probe is not None:
            return self._probe.at + PROBE_AGAIN_S
        return self._rtt_at + PROBE_AGAIN_S
