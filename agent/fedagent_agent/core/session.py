"""The session with one edge: heartbeat, hello, reports, and what probes measure."""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from fedagent_protocol.messages import ContextReport, Hello, Probe, ProbeReply

from .effects import Effect, Send
from .reporting import MIN_GAP_S, DeviceState, LinkQuality

SILENT_PERIODS = 3
MIN_PERIOD_S = 0.2
LONGEST_PERIOD_S = 60.0
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
class _Sent:
    """A probe under way."""

    nonce: int
    at: float
    up_bytes: int = 0
    down_bytes: int = 0


@dataclass(slots=True)
class Session:
    """One edge, as this agent sees it.

    Attributes:
        link: Where its messages come from and go to.
        run: Run of its newest order.
        retired: Runs that it served before; their messages are too late.
        announced: Whether the session was told of as joined.
        epoch: Which life of the edge the beacons come from.
        measured: What is known of the path.
    """

    edge: str
    link: str
    heard_at: float
    state: SessionState = SessionState.HELLO
    run: str = ""
    retired: deque[str] = field(default_factory=lambda: deque(maxlen=_RETIRED_RUNS))
    measured: LinkQuality = field(default_factory=LinkQuality)
    period_s: float = 5.0
    context_s: float = 15.0
    announced: bool = False
    epoch: str = ""
    _hello_at: float = -1e9
    _said: ContextReport | None = None
    _said_at: float = -1e9
    _look_at: float | None = None
    _sent: _Sent | None = None
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
        """Take in how often the edge promises to speak, and whether it has restarted."""
        self.period_s = min(LONGEST_PERIOD_S, max(MIN_PERIOD_S, period_ms / 1000))
        if self.epoch and epoch != self.epoch:
            # It has forgotten us, and a shared broker would not have told.
            self.reconnect()
        self.epoch = epoch

    def hello(self, greeting: Hello, now: float) -> list[Effect]:
        """Say hello, unless that was just done."""
        if now - self._hello_at < HELLO_AGAIN_S:
            return []
        self._hello_at = now
        return [Send(self.edge, greeting)]

    def reconnect(self) -> None:
        """The link is new: the edge must be greeted again."""
        self.state = SessionState.HELLO
        self._hello_at = -1e9
        self._sent = None

    def welcomed(self, context_ms: int) -> bool:
        """Open the session; False if it was open already."""
        fresh = self.state is not SessionState.OPEN
        self.state = SessionState.OPEN
        self.context_s = max(MIN_REPORT_S, context_ms / 1000)
        if fresh:
            self._said = None
        return fresh

    def enter_run(self, run: str) -> None:
        """The edge serves this run from now on."""
        if self.run and run != self.run:
            self.retired.append(self.run)
        self.run = run

    # -------------------------------------------------------------- reporting

    def report(self, device: DeviceState, seq: int, now: float) -> ContextReport:
        """Return a report that is about to be sent, and remember it."""
        self._said = device.report(self.measured, run=self.run, seq=seq)
        self._said_at, self._look_at = now, None
        return self._said

    def report_wanted(self, device: DeviceState, now: float) -> bool:
        """Whether it is time to report, or something changed enough."""
        if self.state is not SessionState.OPEN:
            return False
        if self._said is None or now >= self._said_at + self.context_s:
            return True
        if now < self._said_at + MIN_GAP_S:
            return False
        self._look_at = None
        return device.differs(self.measured, self._said)

    def look_again(self, now: float) -> None:
        """Something was measured: see whether it is worth a report, as soon as one may go."""
        self._look_at = max(now, self._said_at + MIN_GAP_S)

    @property
    def report_at(self) -> float:
        """When the next report is due, or something measured is to be looked at."""
        due = self._said_at + self.context_s if self._said is not None else 0.0
        return due if self._look_at is None else min(due, self._look_at)

    # ---------------------------------------------------------------- probing

    def probe(self, now: float) -> list[Effect]:
        """Measure what no transfer has measured, one thing at a time."""
        if self._sent is not None and now >= self._sent.at + PROBE_AGAIN_S:
            self._sent = None  # lost
        if self.state is not SessionState.OPEN or self._sent is not None:
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
        self._sent = _Sent(self._nonce, now, up, down)
        probe = Probe(run=self.run, nonce=self._nonce, reply_bytes=down, data=bytes(up))
        return [Send(self.edge, probe)]

    def probe_reply(self, reply: ProbeReply, now: float) -> bool:
        """Take in the answer to the probe that is under way; False for any other."""
        sent = self._sent
        if sent is None or reply.nonce != sent.nonce or len(reply.data) != sent.down_bytes:
            return False
        self._sent = None
        seconds = now - sent.at
        bare = seconds - (self.measured.rtt_s or 0.0)
        if sent.down_bytes:
            self.measured.note_download(sent.down_bytes, max(bare, seconds / 10))
        elif sent.up_bytes:
            self.measured.note_upload(sent.up_bytes, max(bare, seconds / 10))
        else:
            self.measured.note_rtt(seconds)
        self.look_again(now)
        return True

    @property
    def probe_at(self) -> float:
        """When `probe` is wanted again."""
        if self._sent is not None:
            return self._sent.at + PROBE_AGAIN_S
        return self._rtt_at + PROBE_AGAIN_S
