"""The envelope: who wrote a message, to which topic, and that it comes once."""

import contextlib
from collections import Counter
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_node import envelope
from fedagent_node.envelope import (
    HEARD,
    MAX_STEP,
    RECHECK_S,
    WINDOW,
    EnvelopeError,
    Gate,
    Opened,
    Refusal,
)
from fedagent_node.site.certificates import Certificate, Role
from fedagent_protocol import topics
from fedagent_protocol.errors import ProtocolError
from tests.fakes.voices import identity

AGENT, EDGE, COORDINATOR, EVIL = map(identity, ("agent", "edge", "coordinator", "evil"))
UP = topics.agent_up("here", AGENT.id, EDGE.id, "update")
DOWN = topics.edge_down("here", EDGE.id, "round-order")


@dataclass
class Party:
    """A gate whose clock, disk and log a test holds."""

    name: str = "agent"
    starts: int = 1
    now: float = 0.0
    said: list[tuple[str, bytes]] = field(default_factory=list)
    log: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gate = Gate(
            identity(self.name),
            starts=self.starts,
            clock=lambda: self.now,
            keep_starts=lambda starts: setattr(self, "starts", starts),
            publish=lambda _link, topic, payload: self.said.append((topic, payload)),
            log=self.log.append,
        )

    def seal(self, body: bytes = b"body", topic: str = UP, kind: str = "update") -> bytes:
        return self.gate.seal(topic, body, kind=kind)

    def open(self, payload: bytes, topic: str = UP) -> Opened | None:
        return self.gate.open(topic, topics.parse(topic), payload, "link")

    def refuses(self, payload: bytes, topic: str = UP) -> str:
        with pytest.raises(EnvelopeError) as error:
            self.open(payload, topic)
        return str(error.value.detail)


@pytest.fixture
def agent() -> Party:
    return Party("agent")


@pytest.fixture
def edge() -> Party:
    return Party("edge")


def test_nothing_of_it_can_be_changed(agent: Party, edge: Party) -> None:
    payload = agent.seal(b"body")
    for at in range(len(payload)):
        changed = payload[:at] + bytes((payload[at] ^ 1,)) + payload[at + 1 :]
        assert edge.refuses(changed) in {"unsigned", "other_key", "bad_signature"}, at
    assert edge.open(payload), "what is forged moves no window"


@given(st.binary(max_size=300))
def test_whatever_comes_is_refused_with_a_typed_error(garbage: bytes) -> None:
    for payload in (
        garbage,
        b"\xc1\x01\x01" + garbage,
        Party().seal(b"nobody guesses")[:110] + garbage,
    ):
        with pytest.raises(ProtocolError):
            Party("edge").open(payload)


def test_every_refusal_says_what_to_do(agent: Party, edge: Party) -> None:
    payload = agent.seal()
    assert edge.refuses(b"\x81\xa1t\xa3bye") == "unsigned"
    assert edge.refuses(Party("evil").seal()) == "other_key"
    for other in ("order", "context"):  # relabelled: another kind, another edge
        assert edge.refuses(payload, UP.replace("update", other)) == "bad_signature"
    assert edge.open(payload)
    assert edge.refuses(payload) == "replayed"
    assert all(str(EnvelopeError(refusal)) for refusal in Refusal)


@given(st.lists(st.integers(1, 3 * WINDOW), max_size=60))
def test_a_number_is_taken_once_and_none_that_is_too_old(numbers: list[int]) -> None:
    agent, edge = Party("agent"), Party("edge")
    sealed = {}
    for number in sorted(set(numbers)):
        agent.gate._number = (1 << 32) + number - 1
        sealed[number] = agent.seal()
    taken: Counter[int] = Counter()
    newest = 0
    for number in numbers:
        fresh = number > newest - WINDOW and not taken[number]
        try:
            edge.open(sealed[number])
        except EnvelopeError:
            assert not fresh
        else:
            assert fresh
            taken[number] += 1
        newest = max(newest, number)


def test_who_is_behind_is_told_and_goes_on_ahead(agent: Party, edge: Party) -> None:
    """A directory that was restored from a backup."""
    assert edge.open(agent.seal())
    later = Party("agent", starts=40)
    assert edge.open(later.seal())
    restored = Party("agent", starts=3)
    assert edge.refuses(restored.seal()) == "replayed"
    assert edge.refuses(restored.seal()) == "replayed"
    ((topic, payload),) = edge.said  # not of each
    assert topics.parse(topic).kind == HEARD
    assert restored.open(payload, topic) is None
    assert restored.starts == 41
    assert "restored from a backup" in restored.log[0]
    assert edge.open(restored.seal())
    assert restored.refuses(payload, topic) == "replayed"


def test_two_that_use_one_identity_are_told_from_a_backup_and_from_who_repeats(
    edge: Party,
) -> None:
    """A copied card: each process jumps ahead of the other, and both are told what to do."""
    both = [Party("agent", starts=5), Party("agent", starts=5)]
    heard, ends = list[bytes](), Counter[str]()
    for number in range(20):
        edge.now += 1.0
        for _ in range(1 + 3 * (number == 0)):  # one has said more than the other
            heard.append(both[number % 2].seal())
            try:
                edge.open(heard[-1])
            except EnvelopeError as error:
                ends[error.detail] += 1
        for topic, payload in edge.said:
            for one in both:
                with contextlib.suppress(EnvelopeError):
                    one.open(payload, topic)
        edge.said.clear()
    assert ends["cloned"] > 1
    for one in both:
        assert sum("delete identity.json" in line for line in one.log) == 1
    edge.now += 9.0
    newest = Party("agent", starts=900)
    assert edge.open(newest.seal()), "the other has another identity now"
    for payload in heard:
        edge.now += 9.0
        assert edge.refuses(payload) == "replayed", "by who listens to the network"


def test_one_lie_does_not_use_up_what_is_left_of_the_numbers(agent: Party, edge: Party) -> None:
    """The highest number that is no nonsense; the process starts again afterwards."""
    assert edge.open(agent.seal())
    topic = topics.agent_down("here", AGENT.id, EDGE.id, HEARD)
    body = ((2**31 - 1) << 32).to_bytes(8) + b"\0" + AGENT.id.encode()
    assert agent.open(Party("edge").seal(body, topic, HEARD), topic) is None
    assert agent.starts <= 2 + MAX_STEP
    assert edge.open(agent.seal()), "it goes on"
    again = Party("agent", starts=agent.starts % 2**31 + 1)  # as `count_start` counts
    assert edge.open(again.seal()), "and does so after it was restarted"


def test_a_number_beyond_all_reason_closes_the_door_to_nobody(edge: Party) -> None:
    assert edge.refuses(Party("agent", starts=2**32 - 1).seal()) == "replayed"
    assert edge.open(Party("agent").seal())


def test_what_is_sealed_between_neighbours_and_the_end_of_a_connection_come_bare(
    agent: Party, edge: Party
) -> None:
    topic = topics.agent_down("here", AGENT.id, EDGE.id, "peer-deliver")
    bare = edge.seal(b"sealed", topic, "peer-deliver")
    assert agent.open(bare, topic) == Opened(EDGE.id, b"sealed", b"")
    gone = topics.agent_to_all("here", AGENT.id, "gone")
    assert edge.open(b"gone", gone) == Opened(AGENT.id, b"gone", b"")


def test_what_goes_to_a_neighbour_is_signed_up_to_the_edge(agent: Party, edge: Party) -> None:
    topic = UP.replace("update", "peer-send")
    assert edge.refuses(b"bare", topic) == "unsigned"
    assert edge.refuses(Party("evil").seal(b"forged", topic, "peer-send"), topic) == "other_key"
    opened = edge.open(agent.seal(b"sealed", topic, "peer-send"), topic)
    assert opened is not None
    assert (opened.sender, opened.body) == (AGENT.id, b"sealed")


def test_invented_senders_take_bounded_memory(edge: Party, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelope, "MAX_SENDERS", 3)
    for n in range(9):
        assert edge.open(Party(f"invented {n}").seal(topic=DOWN), DOWN)
    assert len(edge.gate._senders) == 3


@dataclass
class Site:
    """Certificates by their bytes: `key role`; `ended` names those that are not valid any more."""

    me: str
    ended: set[bytes] = field(default_factory=set)
    reads: int = 0

    def asked(self, link: str) -> bool:
        return link == "link"

    def own(self) -> bytes:
        return f"{self.me} {self.me}".encode()

    def read(self, der: bytes) -> Certificate:
        self.reads += 1
        if der in self.ended:
            raise EnvelopeError(Refusal.REVOKED)
        name, role = der.decode().split()
        who = identity(name)
        return Certificate(
            id=who.id,
            role=cast("Role", role),
            site="hall",
            public=who.public_bytes,
            serial=1,
            not_before=0.0,
            not_after=1.0,
            der=der,
        )


HELLO = topics.agent_up("here", AGENT.id, EDGE.id, "hello")


def _hello(party: Party, der: bytes) -> bytes:
    site = Site("agent")
    site.own = lambda: der  # type: ignore[method-assign]
    party.gate.certifier = site
    return party.gate.seal(HELLO, b"hello", link="link", kind="hello")


def test_a_link_of_the_site_asks_for_certificates(agent: Party, edge: Party) -> None:
    site = edge.gate.certifier = Site("edge")
    assert edge.refuses(agent.seal()) == "no_certificate"
    assert edge.refuses(_hello(agent, b"evil agent"), HELLO) == "no_certificate"
    assert edge.refuses(_hello(agent, b"agent edge"), HELLO) == "wrong_role"
    assert edge.refuses(agent.seal()) == "wrong_role"
    opened = edge.open(_hello(agent, b"agent agent"), HELLO)
    assert opened is not None
    assert opened.body == b"hello"
    assert edge.open(agent.seal()), "it is known now"
    site.ended.add(b"agent agent")
    edge.gate.recheck()
    assert edge.refuses(agent.seal()) == "revoked"


def test_a_certificate_is_read_again_from_time_to_time(agent: Party, edge: Party) -> None:
    site = edge.gate.certifier = Site("edge")
    assert edge.open(_hello(agent, b"agent agent"), HELLO)
    assert edge.open(agent.seal())
    assert site.reads == 1
    site.ended.add(b"agent agent")
    edge.now += RECHECK_S
    assert edge.refuses(agent.seal()) == "revoked"
    assert edge.refuses(_hello(agent, b"agent agent"), HELLO) == "revoked"
    # A session may outlive a certificate: a heartbeat shows the renewed one.
    assert agent.gate.certifier is not None
    agent.gate.certifier.own = lambda: b"agent  agent"  # type: ignore[method-assign]
    context = UP.replace("update", "context")
    assert edge.open(agent.gate.seal(context, b"body", link="link", kind="context"), context)
    edge.now += RECHECK_S
    assert edge.open(agent.gate.seal(UP, b"body", link="link", kind="update"))
