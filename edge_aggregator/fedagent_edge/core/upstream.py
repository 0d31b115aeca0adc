"""The edge's session with the coordinator: which one is served, and when to write what to it."""

from dataclasses import dataclass

from msgspec.structs import replace

from fedagent_node.effects import Effect, Emit, Send
from fedagent_protocol import messages as m

from .effects import COORDINATOR, Ignored
from .state import EdgeState

STATUS_S = 5.0
CHANGES_WAIT_S = 0.5
"""How long what is new of an agent waits for what is new of others."""
HELLO_AGAIN_S = 1.0
HELLO_SELDOM_S = 5.0
SILENT_S = 15.0
"""Three silent periods of the coordinator's beacon."""
REPORT_AGAIN_S = 1.0
"""How long a report waits for its receipt before it goes again."""


@dataclass(slots=True)
class Upstream:
    """The session, and the report that waits for its receipt.

    Attributes:
        coordinator: The one served now, or last.
        welcomed: It has answered our hello since the connection came up.
        joined: Its coming was announced.
        heard_at: When it showed a sign of life.
    """

    state: EdgeState
    coordinator: str = ""
    welcomed: bool = False
    joined: bool = False
    heard_at: float = -1e9
    _hello_at: float = 0.0
    _seq: int = 0

    def __post_init__(self) -> None:
        self.state.timers.at("hello", 0.0, self._greet)

    def connected(self, now: float) -> list[Effect]:
        """Begin anew: the broker is there."""
        self.welcomed = False
        return [self._hello(now)]

    def beacon(self, sender: str, beacon: m.CoordinatorBeacon, now: float) -> list[Effect]:
        """Greet a coordinator that is not served yet, unless another one is."""
        coordinator = beacon.coordinator
        if coordinator != sender:
            raise Ignored("beacon_not_usable")
        self._refuse_another(coordinator, now)
        if coordinator == self.coordinator or not self.coordinator:
            self.heard_at = now
        return [] if self.welcomed and coordinator == self.coordinator else [self._hello(now)]

    def welcome(self, coordinator: str, now: float) -> list[Effect]:
        """Begin the session, unless another coordinator is served."""
        self._refuse_another(coordinator, now)
        new = not self.joined or coordinator != self.coordinator
        self.coordinator, self.welcomed, self.joined, self.heard_at = coordinator, True, True, now
        self.state.timers.sooner("silence", now + SILENT_S + 0.001, self._listen)
        return [Emit("coordinator_joined", {"coordinator": coordinator})] if new else []

    def ask_welcome(self, now: float) -> list[Effect]:
        """Say hello again, not too often: orders and our rounds do not fit together."""
        return [self._hello(now)] if now >= self._hello_at else []

    def changed(self, now: float) -> None:
        """Send a status soon: something of an agent is new."""
        self.state.timers.sooner("status", now + CHANGES_WAIT_S, self._status_due)

    def run_ended(self, now: float) -> None:
        """Be ready to be welcomed again: the next run may come from the same coordinator."""
        self.welcomed, self.state.memory.report = False, None
        self._hello_at = now + HELLO_SELDOM_S
        self.state.timers.at("hello", self._hello_at, self._greet)

    # ------------------------------------------------------------- what goes up

    def report(self, report: m.RoundReport, now: float, first: bytes = b"") -> Send:
        """Send a report, until its receipt comes; once with the first chunk of its model."""
        self.state.memory.report = report
        self.state.timers.at("report", now + REPORT_AGAIN_S, self._report_due)
        # It may be repeated by another process than made it, or when the list is another.
        return Send(COORDINATOR, replace(report, epoch=self.state.sessions.epoch, first=first))

    def report_again(self, now: float) -> list[Effect]:
        """Send what was not receipted, if anything."""
        report = self.state.memory.report
        return [] if report is None else [self.report(report, now)]

    def witness(self, head: m.LedgerHead | None) -> None:
        """Keep the newest head of the coordinator's ledger, and show it at every hello."""
        memory, held = self.state.memory, self.state.memory.head
        if head is None or head.coordinator != self.coordinator:
            return
        if held is None or held.coordinator != head.coordinator or held.seq < head.seq:
            memory.head = head

    def receipt(self, receipt: m.ReportReceipt) -> None:
        """Take in that a report is settled."""
        memory = self.state.memory
        if memory.report is not None and memory.report.round == receipt.round:
            if receipt.too_late:
                self.state.counters["report_too_late"] += 1
            # Not worth a write: a report that is sent again is only receipted again.
            memory.report = None
            self.state.timers.stop("report")
        self.witness(receipt.head)

    def status(self, now: float) -> Send:
        """Return the heartbeat; what is known of agents is sent once."""
        self._seq += 1
        state, sessions = self.state, self.state.sessions
        message = m.EdgeStatus(
            run=state.memory.run,
            seq=self._seq,
            epoch=sessions.epoch,
            agents=sessions.present,
            model=state.memory.model,
            counters=dict(state.counters),
            rent=state.me.rent,
            devices=sessions.changed_devices(now),
            trouble=state.trouble,
            crl=state.crl,
        )
        again_s = CHANGES_WAIT_S if sessions.has_changes else STATUS_S
        self.state.timers.at("status", now + again_s, self._status_due)
        return Send(COORDINATOR, message)

    # ------------------------------------------------------------------- time

    def _greet(self, now: float) -> list[Effect]:
        return [] if self.welcomed else [self._hello(now)]

    def _status_due(self, now: float) -> list[Effect]:
        return [self.status(now)] if self.welcomed else []

    def _report_due(self, now: float) -> list[Effect]:
        return self.report_again(now) if self.welcomed else []

    def _listen(self, now: float) -> list[Effect]:
        """Look for the coordinator again once it has been silent for too long."""
        until = self.heard_at + SILENT_S
        if not self.joined:
            return []
        if now <= until:
            self.state.timers.at("silence", until + 0.001, self._listen)
            return []
        self.welcomed = self.joined = False
        return [Emit("coordinator_lost", {"coordinator": self.coordinator}), self._hello(now)]

    def _refuse_another(self, coordinator: str, now: float) -> None:
        """Two coordinators of one site must not tear an edge from each other."""
        alive = self.welcomed and now - self.heard_at <= SILENT_S
        if alive and coordinator != self.coordinator:
            raise Ignored("other_coordinator")

    def _hello(self, now: float) -> Send:
        near = now - self.heard_at <= SILENT_S
        self._hello_at = now + (HELLO_AGAIN_S if near else HELLO_SELDOM_S)
        self.state.timers.at("hello", self._hello_at, self._greet)
        memory = self.state.memory
        epoch = self.state.sessions.epoch
        newest = {"run": memory.run, "round": memory.last_round, "head": memory.head}
        return Send(COORDINATOR, replace(self.state.me, epoch=epoch, **newest))
