"""A device with a certificate of the site takes over and floods, at own and at shared brokers.

Its tools are none of ours. What it says is signed as it should be, or is garbage.
"""

import itertools
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import numpy as np
import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from fedagent_coordinator.books.reader import open_reader
from fedagent_node.data_dir import Identity, load_or_create
from fedagent_node.envelope import Gate
from fedagent_node.network import free_port
from fedagent_node.site.certificates import Certificate, Role
from fedagent_node.site.tls import SiteTls
from fedagent_protocol import messages as m
from fedagent_protocol import topics
from fedagent_protocol.codec import encode
from fedagent_protocol.columns import Columns, pack
from fedagent_protocol.opinions import Asked
from fedagent_protocol.signatures import CLAIM_BYTES
from fedagent_testbed.local import LocalField, RoleProcess
from tests.fakes.attacker import Attack, Attacker
from tests.fakes.site import Members
from tests.fakes.voices import read
from tests.typed import fedagent

from .support import BROKERS, DEMO, MOSQUITTO, PATIENT, check_books, labels, new_field
from .test_attacks import MODEL, honest_rounds

pytestmark = pytest.mark.slow
AGENTS, ROUNDS = 3, 3
EPOCH = "5" * 32
MESSAGES = 20_000
"""A flood ebbs away after so many, for the sake of the machine that the tests run on."""


Said = tuple[str, bytes]


class Flood:
    """Sends what it is given, as fast as a broker takes it; others open sessions of many names."""

    def __init__(
        self, address: str, evil: SiteTls, others: SiteTls, names: list[str], said: list[Said]
    ) -> None:
        host, _, port = address.rpartition("//")[2].partition(":")
        self._where = (host, int(port))
        self._names, self._said = names, said
        self._over = threading.Event()
        self.sent = self.sessions = 0
        self._threads = [
            threading.Thread(target=self._run, args=(context, each), daemon=True)
            for context, each in (
                (others.client_context(), self._take_over),
                (evil.client_context(), self._fill),
            )
        ]

    def __enter__(self) -> Self:
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for each in self._threads:
            each.join(20)

    def _run(self, context: ssl.SSLContext, work: Callable[[paho.Client], None]) -> None:
        for name in itertools.cycle(self._names):
            if self._over.is_set():
                return
            with suppress(OSError):
                client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name)
                client.tls_set_context(context)
                client.tls_insecure_set(True)
                client.connect(*self._where)
                self.sessions += 1
                client.loop_start()
                work(client)
                client.disconnect()
                client.loop_stop()

    def _take_over(self, _client: paho.Client) -> None:
        self._over.wait(0.1)

    def _fill(self, client: paho.Client) -> None:
        for _ in range(200):
            for topic, payload in self._said * 25:
                written = client.publish(topic, payload, 0)
                self.sent += 1
            with suppress(ValueError, RuntimeError):
                written.wait_for_publish(1.0)
            if self._over.is_set() or not client.is_connected():
                return
            if self.sent > MESSAGES:
                self._over.wait(0.5)


def guests(members: Members) -> list[SiteTls]:
    """Return two devices and two edges of the site that mean no good."""
    roles: tuple[Role, ...] = ("agent", "agent", "edge", "edge")
    return [members.member(f"evil-{i}", role) for i, role in enumerate(roles)]


def names_of(*ids: str) -> list[str]:
    """Return every name that a session of ours has, or had, at a broker."""
    ways = ("{}", "{}-lan", "{}-wan", "c-{}", "c/{}", "e/{}", "a/{}", "{}-1", "{}-0")
    return [way.format(ident) for ident in ids for way in ways]


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


def lies(site: str, evil: SiteTls, folder: Path, edge: str, victim: str) -> list[Said]:
    """Return messages of the evil device, in its own name and in the victim's."""
    gate = Gate(load_or_create(folder), starts=5, clock=time.monotonic)
    gate.certifier = Shown(evil.credentials.certificate.der)
    me = evil.credentials.certificate.id
    said = [(topics.agent_up(site, me, edge, "update"), bytes(20_000))]
    for message in (
        m.Hello(agent=victim),
        m.ContextReport(seq=1, available=False, price=9),
        m.Bye(),
    ):
        for who in (me, victim):
            topic = topics.agent_up(site, who, edge, m.kind(message))
            sealed = gate.seal(topic, encode(message), link="", kind=m.kind(message))
            said.append((topic, sealed))
    return said


def check_unmoved(field: LocalField, *evil: SiteTls) -> None:
    """Nobody honest was lost, or lost its broker."""
    for process in field.processes.values():
        lost = {str(one["agent"]) for one in process.all("agent_lost")}
        assert lost <= {one.credentials.certificate.id for one in evil}
        assert not process.all("edge_lost")
    for process in field.processes.values():
        log = process.log.read_text()
        assert "Traceback" not in log
        assert log.count(": connected to") <= 2, log


@pytest.mark.parametrize("kind", BROKERS)
def test_a_member_takes_over_no_session_and_its_flood_stops_no_round(
    tmp_path: Path, kind: str
) -> None:
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        members.member("edge-0", "edge")
        for i in range(AGENTS):
            members.member(f"agent-{i}", "agent")
        evil, other, hall, porch = guests(members)
        sets = (f"rounds.count={ROUNDS}", *PATIENT, "policy.name=cheapest", "budget.per_edge=10")
        coordinator = field.coordinator(
            DEMO, broker=kind, secure=True, join_port=0, wait_edges=1, wait_agents=AGENTS, sets=sets
        )
        edge = field.edge("edge-0", broker=kind, secure=True)
        victim = field.agent("agent-0", labels(0))
        field.agent("agent-1", labels(1))
        ids = [str(each.wait("ready")["id"]) for each in (edge, coordinator, victim)]
        names = names_of(*ids)
        said = lies(field.site, evil, tmp_path / "evil-0", ids[0], ids[2])
        here, there = str(edge.wait("ready")["broker"]), str(coordinator.wait("ready")["broker"])
        with (
            Flood(here, evil, other, names, said) as flood,
            Flood(there, hall, porch, names, said),
        ):
            field.agent("agent-2", labels(2))
            honest_rounds(coordinator)
        assert flood.sent > 100
        assert flood.sessions > 3
        check_unmoved(field, evil, other)
    check_books(coordinator)
    assert "refused: unsigned" in edge.log.read_text()


@contextmanager
def shared(folder: Path, home: Path) -> Iterator[str]:
    """Run a mosquitto as `fedagent broker` says that it should be."""
    made = fedagent(
        *("broker", "--to", str(folder / "broker")),
        *("--data-dir", str(home)),
    )
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


@pytest.mark.mosquitto
@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed")
def test_at_a_shared_broker_of_the_site_a_member_gets_no_farther(tmp_path: Path) -> None:
    """Its certificate and its list come from `fedagent broker`; all links are on it."""
    with new_field(tmp_path) as field:
        home = tmp_path / "coordinator"
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        members.member("edge-0", "edge")
        for i in range(AGENTS):
            members.member(f"agent-{i}", "agent")
        evil, other, *_ = guests(members)
        with shared(tmp_path, home) as address:
            sets = (f"rounds.count={ROUNDS}", *PATIENT, "policy.name=cheapest")
            coordinator = field.coordinator(
                DEMO,
                broker=address,
                join_port=0,
                wait_edges=1,
                wait_agents=AGENTS,
                sets=(*sets, "budget.per_edge=10"),
            )
            edge = field.edge("edge-0", broker=address, coordinator=address)
            victim = field.agent("agent-0", labels(0))
            field.agent("agent-1", labels(1))
            ids = [str(each.wait("ready")["id"]) for each in (edge, coordinator, victim)]
            up, down = topics.agent_up, topics.agent_down
            reach = ("#", down(field.site, ids[2], "+", "#"), up(field.site, "+", "+", "#"))
            attack = Attack(MODEL, *reach)
            said = lies(field.site, evil, tmp_path / "evil-0", ids[0], ids[2])
            with (
                Attacker(address, attack, context=evil.client_context()) as ear,
                Flood(address, evil, other, names_of(*ids), said) as flood,
            ):
                field.agent("agent-2", labels(2))
                honest_rounds(coordinator)
            kinds = {topics.parse(topic).kind for topic, _ in ear.heard}
            assert not kinds - {"edge-beacon", "coordinator-beacon", "chunk"}
            assert flood.sent > 100
            check_unmoved(field, evil, other)
    check_books(coordinator)


@pytest.mark.parametrize("kind", BROKERS)
def test_an_enrolled_edge_is_paid_for_no_device_that_it_invents(tmp_path: Path, kind: str) -> None:
    """Keys cost nothing: with them it signs what work it likes, of devices that never joined."""
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        for name, role in (("honest", "edge"), ("ghost", "edge"), ("agent-0", "agent")):
            members.member(name, role)  # type: ignore[arg-type]  # roles
        coordinator = field.coordinator(
            DEMO,
            broker=kind,
            secure=True,
            join_port=0,
            wait_edges=2,
            sets=("rounds.count=3", *PATIENT, "policy.name=cheapest", "budget.per_edge=10"),
        )
        price = {"base": 1.0, "per_compute": 0.0}
        ghost = field.edge("ghost", broker=kind)
        at = str(ghost.wait("ready")["broker"])
        for i in range(3):
            field.agent(f"invented-{i}", labels(i), price=price, discovery="off", broker=at)
        field.edge("honest", broker=kind, secure=True)
        time.sleep(1.0)
        field.agent("agent-0", labels(4), price=price)
        assert coordinator.wait("strangers", timeout_s=60)["name"] == "ghost"
        end = coordinator.wait("end", timeout_s=60)
        assert (end["rounds_done"], end["updates_used"], end["spent_micro"]) == (3, 3, 3_000_000)
    assert "have not joined the site" in coordinator.log.read_text()
    check_books(coordinator)


class LyingEdge:
    """An edge of the site that names devices which another one hears, and speaks for them.

    It has come to what they signed of the model before.
    """

    def __init__(self, site: str, evil: SiteTls, folder: Path, victims: list[Identity]) -> None:
        self.own: set[tuple[str, bytes]] = set()
        self.told = self.judged = 0
        self._site, self._victims, self._task = site, victims, ""
        self._gate = Gate(load_or_create(folder), starts=5, clock=time.monotonic)
        self._gate.certifier = Shown(evil.credentials.certificate.der)
        self._me = evil.credentials.certificate.id
        self._digest = ""
        down, beacons = topics.edge_down(site, self._me, "#"), topics.coordinator_beacon(site, "+")
        self.filters = [(down, 1), (beacons, 1)]

    def answer(self, topic: str, payload: bytes) -> list[Said]:
        message = read(topics.parse(topic).direction, payload)
        match message:
            case m.CoordinatorBeacon():
                return [
                    self._say(m.EdgeHello(edge=self._me, epoch=EPOCH, name="liar")),
                    self._say(m.EdgeStatus(run=message.run, epoch=EPOCH, model=self._digest)),
                ]
            case m.GlobalModel():
                self._digest = message.digest
            case m.EdgeWelcome():
                self._task = message.task
            case m.OpinionOpen():
                self.judged += 1
                return [self._say(self._opinions(message))]
            case m.RoundOpen():
                self.told += 1
                return [self._say(self._lies(message))]
        return []

    def _lies(self, asked: m.RoundOpen) -> m.RoundColumns:
        count = len(self._victims)
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
            run=asked.run,
            round=asked.round,
            epoch=EPOCH,
            known=0,
            new_ids=tuple(one.id for one in self._victims),
            features=columns.features,
            model=self._digest,
            **pack(columns),
        )

    def _opinions(self, asked: m.OpinionOpen) -> m.Opinions:
        of = {"site": self._site, "run": asked.run, "task": self._task, "model": asked.model}
        former = Asked(round=max(0, asked.round - 1), **of)
        none, forged, old = self._victims
        said = former.scored(old.id, "accuracy", 1.0, 500, 0.0)
        claims = [bytes(CLAIM_BYTES), forged.public_bytes + bytes(64), old.public_bytes]
        claims[2] += old.sign(said) if asked.round else none.sign(said)
        return m.Opinions(
            run=asked.run,
            round=asked.round,
            epoch=EPOCH,
            model=asked.model,
            known=0,
            new_ids=tuple(one.id for one in self._victims),
            session=np.arange(3, dtype="<i4").tobytes(),
            score=np.ones(3, dtype="<f4").tobytes(),
            samples=np.full(3, 500, dtype="<i8").tobytes(),
            metric="accuracy",
            asked=3,
            claim=b"".join(claims),
        )

    def _say(self, message: m.AnyMessage) -> Said:
        topic = topics.edge_up(self._site, self._me, m.kind(message))
        return topic, self._gate.seal(topic, encode(message), link="", kind=m.kind(message))


@pytest.mark.parametrize("kind", BROKERS)
def test_an_enrolled_edge_speaks_for_no_device(tmp_path: Path, kind: str) -> None:
    with new_field(tmp_path) as field:
        members = Members.of_coordinator(tmp_path, "coordinator", field.site)
        members.member("edge-0", "edge")
        for i in range(AGENTS):
            members.member(f"agent-{i}", "agent")
        *_, hall, _ = guests(members)
        coordinator = field.coordinator(
            DEMO,
            broker=kind,
            secure=True,
            join_port=0,
            wait_edges=2,
            wait_agents=AGENTS,
            sets=(
                *("rounds.count=4", *PATIENT, "policy.name=cheapest", "budget.per_edge=10"),
                'opinions.mode="report"',
            ),
        )
        honest = field.edge("edge-0", broker=kind, secure=True)
        there = str(coordinator.wait("ready")["broker"])
        agents = [field.agent(f"agent-{i}", labels(i)) for i in range(AGENTS)]
        ids = [str(agent.wait("ready")["id"]) for agent in agents]
        victims = [load_or_create(tmp_path / f"agent-{i}") for i in range(AGENTS)]
        assert [one.id for one in victims] == ids
        liar = LyingEdge(field.site, hall, tmp_path / "evil-2", victims)
        with Attacker(there, liar, context=hall.client_context()):
            end = coordinator.wait("end", timeout_s=90)
        assert liar.told >= 4
        assert (end["rounds_done"], end["updates_used"]) == (4, 4 * AGENTS)
    log = coordinator.log.read_text()
    assert "reports terms of 3 agents" in log
    assert "reports opinions of 3 agents without their signatures" in log
    check_opinions(coordinator, str(honest.wait("ready")["id"]), liar)
    check_books(coordinator)


def check_opinions(coordinator: RoleProcess, honest: str, liar: LyingEdge) -> None:
    """All devices have their opinions, by the edge that they are at, and no other one counts."""
    with open_reader(Path(str(coordinator.config["data_dir"]))) as read:
        run = read.runs()[0].run_id
        calls, rows = read.evaluations.rows(run), read.evaluations.opinions(run)
    assert liar.judged >= len(calls) >= 2
    signed = Counter(row.round for row in rows)
    for call in calls:
        # Each device that has signed at the other edge is one, and not missing; who was late there
        # is missing twice, once as the liar's.
        late = AGENTS - signed[call.round]
        assert (call.asked, call.reasons.get("unsigned", 0)) == (AGENTS + late, late)
    assert AGENTS in signed.values()
    assert {row.edge_id for row in rows} == {honest}
