"""An edge of the site asks its devices for plain updates of a run that masks them and adds noise.

It has all that a coordinator tells an edge, and it is heard by every device. It hands out a task of
its own in the name of the run, orders rounds of the true task that nobody assigned to it, and asks
for what the samples add up to.
"""

from pathlib import Path

import pytest
from msgspec import structs

from fedagent_agent.core.voucher import UNASSIGNED
from fedagent_node.site.tls import SiteTls
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import encode
from fedagent_protocol.errors import ProtocolError
from fedagent_task.recipe.spec import PrivacySpec, SecureAggregationSpec
from fedagent_task.recipe.text import parse_task, task_bytes, task_digest
from tests.fakes.attacker import Attacker
from tests.fakes.site import Members
from tests.fakes.voices import read

from .support import DEMO, MOSQUITTO, PATIENT, check_books, labels, new_field
from .test_member_attacks import EPOCH, LyingEdge, Said, guests, shared

pytestmark = pytest.mark.slow
AGENTS, ROUNDS, COHORT = 3, 6, 3


class StrippingEdge(LyingEdge):
    """Answers devices as an edge does, and notes what they gave it."""

    def __init__(self, site: str, evil: SiteTls, folder: Path) -> None:
        super().__init__(site, evil, folder, [])
        self.welcome: m.EdgeWelcome | None = None
        self.plain = b""
        self.ordered = 0
        self.given: list[m.AnyMessage] = []
        self.declined: list[m.Decline] = []
        self.filters += [(topics.agent_up(site, "+", self._me, "#"), 1)]

    def answer(self, topic: str, payload: bytes) -> list[Said]:
        try:
            where = topics.parse(topic)
            message = read(where.direction, payload)
        except ProtocolError:
            return []
        match message:
            case m.EdgeWelcome():
                self.welcome, task = message, parse_task(message.body)
                self.plain = task_bytes(
                    structs.replace(
                        task, privacy=PrivacySpec(), secure_aggregation=SecureAggregationSpec()
                    )
                )
            case m.CoordinatorBeacon() | m.RoundOpen():
                beacon = m.EdgeBeacon(run=message.run, edge=self._me, epoch=EPOCH)
                at = topics.edge_beacon(self._site, self._me)
                sealed = self._gate.seal(at, encode(beacon), link="", kind=m.kind(beacon))
                return [*super().answer(topic, payload), (at, sealed)]
            case m.Hello():
                return [self._tell(where.agent, m.Welcome(edge=self._me))]
            case m.ContextReport() if self.welcome is not None:
                return self._order(where.agent, self.welcome.run, task_digest(self.plain), 100)
            case m.TaskNeed() if self.welcome is not None:
                return [self._tell(where.agent, self._body(message, self.welcome))]
            case m.Decline() if self.welcome is not None:
                self.declined.append(message)
                if message.round < 200:
                    return self._order(where.agent, self.welcome.run, self.welcome.task, 200)
                return [self._tell(where.agent, self._call(self.welcome))]
            case m.UpdateOffer() | m.MaskKeys() | m.Opinion():
                self.given.append(message)
            case _:
                return super().answer(topic, payload)
        return []

    def _body(self, need: m.TaskNeed, welcome: m.EdgeWelcome) -> m.TaskBody:
        body = welcome.body if need.digest == welcome.task else self.plain
        return m.TaskBody(run=welcome.run, digest=need.digest, body=body, claim=welcome.claim)

    def _order(self, agent: str, run: str, task: str, ahead: int) -> list[Said]:
        """Order a round ahead of the run, with a signature that is none."""
        self.ordered += 1
        order = m.TrainOrder(
            run=run,
            round=ahead + self.ordered % 100,
            task=task,
            model=self._digest or "a" * 64,
            size=3000,
            chunk_bytes=262_144,
            deadline_ms=10_000,
            give_up_ms=20_000,
            assigned=bytes(64),
        )
        return [self._tell(agent, order)]

    def _call(self, welcome: m.EdgeWelcome) -> m.OpinionCall:
        return m.OpinionCall(
            run=welcome.run,
            round=1,
            task=welcome.task,
            model=self._digest or "a" * 64,
            size=3000,
            chunk_bytes=262_144,
            until_ms=20_000,
            mode=m.OpinionMode.MOMENTS,
            signed=bytes(64),
        )

    def _tell(self, agent: str, message: m.AnyMessage) -> Said:
        topic = topics.agent_down(self._site, agent, self._me, m.kind(message))
        return topic, self._gate.seal(topic, encode(message), link="", kind=m.kind(message))


@pytest.mark.mosquitto
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_an_enrolled_edge_gets_no_plain_update_and_takes_no_device_away(tmp_path: Path) -> None:
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        members.member("edge-0", "edge")
        for i in range(AGENTS):
            members.member(f"agent-{i}", "agent")
        *_, hall, _ = guests(members)
        with shared(tmp_path, tmp_path / "coordinator") as address:
            masked = (f"secure_aggregation.minimum_cohort={COHORT}", "budget.per_edge=9")
            coordinator = field.coordinator(
                DEMO,
                broker=address,
                join_port=0,
                wait_edges=2,
                wait_agents=AGENTS,
                sets=(f"rounds.count={ROUNDS}", *PATIENT, "policy.name=all", *masked),
            )
            field.edge("edge-0", broker=address, coordinator=address)
            liar = StrippingEdge(field.site, hall, tmp_path / "evil-2")
            coordinator.wait("ready")
            with Attacker(address, liar, context=hall.client_context()):
                agents = [field.agent(f"agent-{i}", labels(i)) for i in range(AGENTS)]
                end = coordinator.wait("end", timeout_s=90)
            assert (end["rounds_done"], end["updates_used"]) == (ROUNDS, ROUNDS * AGENTS)
            assert liar.ordered
            assert not liar.given
            assert {said.reason for said in liar.declined} == {m.DeclineReason.UNSIGNED}
    for agent in agents:
        log = agent.log.read_text()
        assert "refused: bad_signature: the coordinator has not signed it for this run" in log
        assert f"refused: {UNASSIGNED}" in log
        assert "Traceback" not in log
    check_books(coordinator)
