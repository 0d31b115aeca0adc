"""An edge of the site that means no good: it speaks for devices, and asks them for what it may not.

It has all that a coordinator tells an edge, and every device hears it. Upwards it names devices
that another edge hears, with terms and opinions that they never signed. Downwards it hands out a
task without masks and noise in the name of the run, orders rounds that nobody assigned to it, and
asks for what the samples add up to. Its tools are none of ours.
"""

import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from fedagent_agent.core.vouching import UNASSIGNED
from fedagent_coordinator.books.reader import open_reader
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.envelope import Gate
from fedagent_node.network import free_port
from fedagent_node.site.certificates import Certificate
from fedagent_node.site.tls import SiteTls
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import encode
from fedagent_protocol.columns import Columns, pack
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.signed import CLAIM_BYTES
from fedagent_task.recipe.spec import PrivacySpec, SecureAggregationSpec
from fedagent_task.recipe.text import parse_task, task_bytes, task_digest
from fedagent_testbed.local import RoleProcess
from tests.fakes.attacker import Attacker
from tests.fakes.site import Members
from tests.fakes.voices import read
from tests.typed import fedagent

from .support import DEMO, MOSQUITTO, PATIENT, check_books, labels, new_field

pytestmark = [
    pytest.mark.slow,
    pytest.mark.mosquitto,
    pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed"),
]
AGENTS, ROUNDS, COHORT = 3, 6, 3
EPOCH = "5" * 32
AHEAD, FURTHER = 100, 200
"""How far beyond the run its own rounds are: of its task, and of the run's."""
Said = tuple[str, bytes]


class Shown:
    """What a gate asks of certificates: shows one's own."""

    def __init__(self, der: bytes) -> None:
        self._der = der

    def asked(self, _link: str) -> bool:
        return True

    def own(self) -> bytes:
        return self._der

    def read(self, der: bytes) -> Certificate:
        raise NotImplementedError


class HostileEdge:
    """What it makes of what it hears; it notes what devices gave it, and what they refused."""

    def __init__(self, site: str, evil: SiteTls, folder: Path) -> None:
        self.own: set[Said] = set()
        self.victims: list[Identity] = []
        self.asked = self.ordered = 0
        self.given: list[m.AnyMessage] = []
        self.declined: list[m.Decline] = []
        self._site, self._digest, self._plain = site, "", b""
        self._welcome: m.EdgeWelcome | None = None
        self._gate = Gate(load_or_create(folder), starts=5, clock=time.monotonic)
        self._gate.certifier = Shown(evil.credentials.certificate.der)
        self._me = evil.credentials.certificate.id
        heard = (
            topics.edge_down(site, self._me, "#"),
            topics.coordinator_beacon(site, "+"),
            topics.agent_up(site, "+", self._me, "#"),
        )
        self.filters = [(each, 1) for each in heard]

    def answer(self, topic: str, payload: bytes) -> list[Said]:
        try:
            where = topics.parse(topic)
            message = read(where.direction, payload)
        except ProtocolError:
            return []
        match message:
            case m.CoordinatorBeacon():
                hello = m.EdgeHello(edge=self._me, epoch=EPOCH, name="liar")
                status = m.EdgeStatus(run=message.run, epoch=EPOCH, model=self._digest)
                return [self._up(hello), self._up(status), self._beacon(message.run)]
            case m.EdgeWelcome():
                self._welcome, task = message, parse_task(message.body)
                bare = {"privacy": PrivacySpec(), "secure_aggregation": SecureAggregationSpec()}
                self._plain = task_bytes(structs.replace(task, **bare))
            case m.GlobalModel():
                self._digest = message.digest
            case m.RoundOpen():
                self.asked += 1
                return [self._up(self._terms(message)), self._beacon(message.run)]
            case m.OpinionOpen():
                return [self._up(self._opinions(message))]
            case m.Hello():
                return [self._down(where.agent, m.Welcome(edge=self._me))]
            case m.UpdateOffer() | m.MaskKeys() | m.Opinion():
                self.given.append(message)
            case _ if self._welcome is not None:
                return self._strip(where.agent, message, self._welcome)
        return []

    def _strip(self, agent: str, message: m.AnyMessage, welcome: m.EdgeWelcome) -> list[Said]:
        """Answer a device as an edge does that wants a plain update."""
        match message:
            case m.ContextReport():
                return [self._order(agent, welcome.run, task_digest(self._plain), AHEAD)]
            case m.TaskNeed(digest=digest):
                body = welcome.body if digest == welcome.task else self._plain
                facts: Any = {"run": welcome.run, "digest": digest, "claim": welcome.claim}
                return [self._down(agent, m.TaskBody(body=body, **facts))]
            case m.Decline():
                self.declined.append(message)
                if message.round < FURTHER:
                    return [self._order(agent, welcome.run, welcome.task, FURTHER)]
                call = m.OpinionCall(
                    **self._model(welcome.run, welcome.task, 1),
                    until_ms=20_000,
                    mode=m.OpinionMode.MOMENTS,
                    signed=bytes(64),
                )
                return [self._down(agent, call)]
        return []

    def _order(self, agent: str, run: str, task: str, ahead: int) -> Said:
        """Order a round ahead of the run, with a signature that is none."""
        self.ordered += 1
        named = self._model(run, task, ahead + self.ordered % 100)
        times: Any = {"deadline_ms": 10_000, "give_up_ms": 20_000}
        return self._down(agent, m.TrainOrder(**named, **times, assigned=bytes(64)))

    def _model(self, run: str, task: str, number: int) -> dict[str, Any]:
        model = {"model": self._digest or "a" * 64, "size": 3000, "chunk_bytes": 262_144}
        return {"run": run, "round": number, "task": task, **model}

    def _terms(self, asked: m.RoundOpen) -> m.RoundColumns:
        count = len(self.victims)
        columns = Columns(
            features=("compute",),
            session=np.arange(count, dtype=np.int32),
            price=np.full(count, 10**9, dtype=np.int64),
            context_seq=np.full(count, 2**62, dtype=np.int64),
            age_ms=np.zeros(count, dtype=np.int32),
            available=np.zeros(count, dtype=np.bool_),
            values=np.ones((count, 1), dtype=np.float32),
            # Of one it has no signature, of the others a wrong one.
            claim=np.full((count, CLAIM_BYTES), [[0]] + [[7]] * (count - 1), dtype=np.uint8),
        )
        return m.RoundColumns(
            **self._named(asked), features=columns.features, model=self._digest, **pack(columns)
        )

    def _opinions(self, asked: m.OpinionOpen) -> m.Opinions:
        return m.Opinions(
            **self._named(asked),
            model=asked.model,
            session=np.arange(AGENTS, dtype="<i4").tobytes(),
            score=np.ones(AGENTS, dtype="<f4").tobytes(),
            samples=np.full(AGENTS, 500, dtype="<i8").tobytes(),
            metric="accuracy",
            asked=AGENTS,
            claim=b"".join(one.public_bytes + bytes(64) for one in self.victims),
        )

    def _named(self, asked: m.RoundOpen | m.OpinionOpen) -> dict[str, Any]:
        ids = tuple(one.id for one in self.victims)
        names = {"run": asked.run, "round": asked.round, "epoch": EPOCH}
        return {**names, "known": 0, "new_ids": ids}

    def _beacon(self, run: str) -> Said:
        beacon = m.EdgeBeacon(run=run, edge=self._me, epoch=EPOCH)
        return self._sealed(topics.edge_beacon(self._site, self._me), beacon)

    def _up(self, message: m.AnyMessage) -> Said:
        return self._sealed(topics.edge_up(self._site, self._me, m.kind(message)), message)

    def _down(self, agent: str, message: m.AnyMessage) -> Said:
        topic = topics.agent_down(self._site, agent, self._me, m.kind(message))
        return self._sealed(topic, message)

    def _sealed(self, topic: str, message: m.AnyMessage) -> Said:
        return topic, self._gate.seal(topic, encode(message), link="", kind=m.kind(message))


@contextmanager
def shared(folder: Path, home: Path) -> Iterator[str]:
    """Run a mosquitto as `fedagent broker` says that it should be."""
    made = fedagent("broker", "--to", str(folder / "broker"), "--data-dir", str(home))
    assert made.returncode == 0, made.stderr
    port = free_port("127.0.0.1")
    config = made.stdout.replace("listener 8883", f"user root\nlistener {port} 127.0.0.1")
    (folder / "conf").write_text(config)
    with (
        (folder / "mosquitto.log").open("wb") as log,
        subprocess.Popen([str(MOSQUITTO), "-c", str(folder / "conf")], stderr=log) as run,
    ):
        try:
            yield f"mqtts://127.0.0.1:{port}"
        finally:
            run.terminate()


@pytest.mark.parametrize("masked", [True, False])
def test_an_enrolled_edge_speaks_for_no_device_and_gets_nothing_from_it(
    tmp_path: Path, masked: bool
) -> None:
    """With masks no plain update; without, opinions of the edge's making count for nothing."""
    more: tuple[str, ...] = ('opinions.mode="report"',)
    if masked:
        more = ("policy.name=all", f"secure_aggregation.minimum_cohort={COHORT}")
    sets = (f"rounds.count={ROUNDS}", *PATIENT, "policy.name=cheapest", "budget.per_edge=10")
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        members.member("edge-0", "edge")
        for i in range(AGENTS):
            members.member(f"agent-{i}", "agent")
        hall = members.member("evil", "edge")
        with shared(tmp_path, tmp_path / "coordinator") as address:
            coordinator = field.coordinator(
                DEMO,
                broker=address,
                join_port=0,
                wait_edges=2,
                wait_agents=AGENTS,
                sets=(*sets, *more),
            )
            honest = field.edge("edge-0", broker=address, coordinator=address)
            liar = HostileEdge(field.site, hall, tmp_path / "evil")
            liar.victims = [load_or_create(tmp_path / f"agent-{i}") for i in range(AGENTS)]
            coordinator.wait("ready")
            with Attacker(address, liar, context=hall.client_context()):
                agents = [field.agent(f"agent-{i}", labels(i)) for i in range(AGENTS)]
                end = coordinator.wait("end")
    assert (end["rounds_done"], end["updates_used"]) == (ROUNDS, ROUNDS * AGENTS)
    assert liar.asked >= ROUNDS
    assert liar.ordered
    assert not liar.given
    assert {said.reason for said in liar.declined} == {m.DeclineReason.UNSIGNED}
    assert any(said.round >= FURTHER for said in liar.declined), "of the run's own task too"
    for agent in agents:
        log = agent.log.read_text()
        # What is wrong with an edge is said once: without masks its task is the run's own.
        not_signed = "bad_signature: the coordinator has not signed it for this run"
        assert f"refused: {not_signed if masked else UNASSIGNED}" in log
        assert "Traceback" not in log
    # It is said when the first of them are heard elsewhere, and not for each again.
    log = coordinator.log.read_text()
    assert re.search(r"reports terms of [1-3] agents?\b", log)
    if not masked:
        assert re.search(r"reports opinions of [1-3] agents? without", log)
        check_opinions(coordinator, str(honest.wait("ready")["id"]))
    check_books(coordinator)


def check_opinions(coordinator: RoleProcess, honest: str) -> None:
    """Opinions are those that came by the edge that the devices are at."""
    with open_reader(Path(str(coordinator.config["data_dir"]))) as read:
        rows = read.evaluations.opinions(read.runs()[0].run_id)
    assert {row.edge_id for row in rows} == {honest}
