"""From the verdict on an update to its receipt: durable, in a saved round, paid, or void."""

from msgspec.structs import replace

from fedagent_node.effects import Effect, Mark, Send, Warn
from fedagent_protocol import messages as m

from .admission import SMALL_BYTES
from .effects import Keep, Kept
from .round import RECEIPTS, Client, Phase, Round, receipt_of
from .state import EdgeState

KEEP_S = 1.0
"""How long an admitted update waits for the end of its round: what is in a model that is on the
disk needs no place of its own. Its agent has it until the receipt."""
HELD_BYTES = 8 << 20
"""So much of small updates is held in memory at most."""
REPORTS = 2
"""Reports whose receipt may still say that work in them is not paid."""
NO_DIGEST = "0" * 64
VOID = "not paid: the coordinator settled the round without it"
MAX_VOID = 1024


class Receipts:
    """What agents are owed a word on, and what was reported of their work."""

    def __init__(self, state: EdgeState) -> None:
        self.owed: dict[str, Client] = {}
        """Those that are admitted and have no receipt; it waits for the disk or the coordinator."""
        self.unsaved = False
        """Whether the disk had no room for the end of the newest round."""
        self._held_bytes = 0
        report = state.memory.report
        self._reported = {(report.run, report.round): report} if report is not None else {}
        self._state = state

    # ------------------------------------------------ from the verdict to the receipt

    def owe(self, client: Client, now: float) -> None:
        """Give a receipt for an update that is valid, once it is durable, or settled."""
        rnd, offer = client.round, client.offer
        assert offer is not None
        self.owed[client.agent] = client
        self._held_bytes += offer.size if rnd.layout.size <= SMALL_BYTES else 0
        wait_s = KEEP_S if self._held_bytes <= HELD_BYTES else 0.0
        self._state.timers.sooner("keep", now + wait_s, self.keep_now)

    def keep_now(self, _: float) -> list[Effect]:
        """Do so now, unless the model of the round is just being made."""
        rnd = self._state.round
        # A model that is made just now saves them when it is done, files removed.
        return [] if rnd is not None and rnd.phase is Phase.COMMITTING else self.keep()

    def keep(self) -> list[Effect]:
        """Make durable what is owed a receipt, or give it where the round is saved or settled."""
        state, owed = self._state, self.owed.values()
        state.timers.stop("keep")
        self._held_bytes = 0
        if not owed:
            return []
        if state.live is None and state.memory.report is None:
            return self.give()
        if state.live is None and not self.unsaved:
            return [replace(state.save(), owed=tuple(one.key for one in owed))]
        return [Keep(tuple(one.ended for one in owed))]

    def not_saved(self) -> list[Effect]:
        """Keep what the end of a round should have saved: a kill must repeat its report."""
        self.unsaved = self._state.round is not None and self._state.live is None
        return self.keep() if self.unsaved else []

    def were_kept(self, event: Kept, now: float) -> list[Effect]:
        """Give receipts for what is durable now; else wait for room, or the coordinator."""
        if event.refused:
            self._state.timers.at("keep", now + KEEP_S, self.keep_now)
            return [Warn("", f"the spool failed: {event.refused}")]
        return self.give(event.keys)

    def give(self, keys: tuple[tuple[str, int, str], ...] | None = None) -> list[Effect]:
        """Send receipts for these updates, or for all that are owed one."""
        clients = [one for one in self.owed.values() if keys is None or one.key in keys]
        words = [(one.agent, one.word()) for one in clients]
        for agent, _ in words:
            del self.owed[agent]
        sends = [Send(agent, word) for agent, word in words if word is not None]
        return [*sends, Mark("edge.receipted")] if sends else []

    def begin(self, rnd: Round) -> list[Effect]:
        """Let the order bring the receipt of the round before: the disk has its report."""
        for agent in self.owed.keys() & rnd.clients.keys():
            rnd.clients[agent].before = self.owed.pop(agent).word()
        self._state.timers.stop("keep")
        self.unsaved, self._held_bytes = False, 0
        return self.give()

    # -------------------------------------------------------- from the report on

    def reported(self, report: m.RoundReport) -> None:
        """Remember what a report says is to be paid."""
        self._reported[report.run, report.round] = report
        while len(self._reported) > REPORTS:
            del self._reported[next(iter(self._reported))]

    def settled(self, receipt: m.ReportReceipt) -> list[Effect]:
        """Say of which work in a round it is not paid; the rest hears so with the next order."""
        name, effects = (receipt.run, receipt.round), list[Effect]()
        report = self._reported.get(name)
        if report is None:
            return []
        paid = list[m.Outcome]()
        for one in report.outcomes:
            if one.valid and (receipt.too_late or one.agent in receipt.unpaid):
                digest = one.proof.update.hex() if one.proof is not None else NO_DIGEST
                effects += self.void(one.agent, name, digest)
            elif one.valid:
                paid.append(one)
        self._reported[name] = replace(report, outcomes=tuple(paid))
        return effects

    def of_report(self, agent: str, offer: m.UpdateOffer) -> m.Receipt | None:
        """Return the word on an update that was reported, also before a restart."""
        report = self._reported.get((offer.run, offer.round))
        for one in report.outcomes if report is not None else ():
            same = one.proof is None or one.proof.update.hex() == offer.digest
            if one.agent == agent and one.valid and same:
                return receipt_of(offer, RECEIPTS[one.status], one.reason)
        return None

    def give_up(self, rnd: Round) -> list[Effect]:
        """Say that a round is not reported, so that no work in it is paid."""
        effects: list[Effect] = []
        for client in rnd.clients.values():
            if client.valid:
                effects += self.void(client.agent, rnd.name)
        return effects

    def void(
        self, agent: str, name: tuple[str, int], digest: str = NO_DIGEST, why: str = VOID
    ) -> list[Effect]:
        """Say that work is not paid whose receipt said, or would have said, that it counts."""
        run, number = name
        rnd = self._state.round
        if rnd is not None and rnd.name == name:
            client = rnd.clients[agent]
            client.void, digest = why, client.file[1]
            self.owed.pop(agent, None)
        self._state.counters["updates_void"] += 1
        void, status = self._state.memory.void, m.ReceiptStatus.VOID
        void[agent] = m.Receipt(run=run, round=number, digest=digest, status=status, reason=why)
        while len(void) > MAX_VOID:
            del void[next(iter(void))]
        return self.hear_void(agent) if self._state.sessions.is_present(agent) else []

    def hear_void(self, agent: str) -> list[Effect]:
        """Return what an agent that was away has not heard of its work."""
        void = self._state.memory.void.pop(agent, None)
        return [Send(agent, void)] if void is not None else []
