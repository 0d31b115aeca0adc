"""Golden bytes: those of this version never change, those of another one are refused."""

from pathlib import Path

import msgspec
import pytest

from fedagent_protocol import messages as m
from fedagent_protocol import peers, topics
from fedagent_protocol.codec import Direction, decode, encode
from fedagent_protocol.errors import MalformedError, TopicError

from . import test_peers
from .samples import FLAT, RUN

GOLDEN = Path(__file__).parent / "golden"
NOW = GOLDEN / str(m.PROTOCOL_VERSION)
_KEY = bytes(range(32))
_STATS = m.TrainStats(num_samples=40, iterations=7, train_ms=290, steps=50, limited=True)
_HEAD = m.LedgerHead(coordinator="site-a", seq=12, hash=bytes(32), signature=bytes(64))
_CLAIM = m.TaskClaim(certificate=b"der", until_s=1_800_000_000, signature=bytes(range(64)))
_MORE: dict[str, tuple[type[m.AnyMessage], dict[str, object]]] = {
    "update.steps": (m.UpdateOffer, {"note": "spread of 2 features", "stats": _STATS}),
    "update.claim": (m.UpdateOffer, {"claim": bytes(range(96))}),
    "update.made-in": (m.UpdateOffer, {"made_in": 3}),
    "update.agreed": (m.UpdateOffer, {"agreed": bytes(range(64))}),
    "mask-shares.checks": (m.MaskShares, {"checks": {"agent-2": bytes(range(64))}}),
    "mask-delivery.checks": (m.MaskDelivery, {"checks": {"agent-2": bytes(range(64))}}),
    "mask-ask.agreed": (m.MaskAsk, {"agreed": {"agent-1": bytes(range(64))}}),
    "context.claim": (m.ContextReport, {"claim": bytes(range(96))}),
    "columns.claim": (m.RoundColumns, {"claim": bytes(range(192))}),
    "opinion.claim": (m.Opinion, {"claim": bytes(range(96))}),
    "opinions.claim": (m.Opinions, {"claim": bytes(range(96))}),
    "volunteer.claim": (m.Volunteer, {"claim": bytes(range(96))}),
    "volunteers.claim": (m.Volunteers, {"claim": bytes(range(96))}),
    "opinion-call.signed": (m.OpinionCall, {"signed": bytes(range(64))}),
    "opinion-open.signed": (m.OpinionOpen, {"signed": bytes(range(64))}),
    "closed.kept": (m.RoundClosed, {"kept": True}),
    "order.load-limit": (m.TrainOrder, {"load_limit_ms": 1300}),
    "hello.address": (m.Hello, {"name": "kitchen", "address": "192.168.1.20"}),
    "edge-hello.rent": (m.EdgeHello, {"rent": 250_000}),
    "edge-status.rent": (m.EdgeStatus, {"rent": 250_000}),
    "edge-status.crl": (m.EdgeStatus, {"crl": 2}),
    "edge-beacon.crl": (m.EdgeBeacon, {"crl": 2}),
    "edge-status.devices": (
        m.EdgeStatus,
        {
            "devices": (
                m.DeviceNote(agent="agent-1", software="fedagent 0.1.0", address="192.168.1.20"),
                m.DeviceNote(agent="agent-2", here=False, age_ms=45_000),
                m.DeviceNote(agent="agent-3", reason="12 % of charge, at least 30 %"),
            )
        },
    ),
    "round-order.load-limit": (m.RoundOrder, {"load_limit_ms": 1300}),
    "welcome.name": (m.Welcome, {"name": "hall"}),
    "task.recipe": (m.TaskBody, {"recipe": "digits"}),
    "task.claim": (m.TaskBody, {"claim": _CLAIM}),
    "edge-welcome.recipe": (m.EdgeWelcome, {"recipe": "digits"}),
    "edge-hello.head": (m.EdgeHello, {"run": RUN, "round": 4, "head": _HEAD}),
    "edge-welcome.claim": (m.EdgeWelcome, {"claim": _CLAIM}),
    "edge-welcome.head": (m.EdgeWelcome, {"head": _HEAD}),
    "report-receipt.head": (m.ReportReceipt, {"head": _HEAD}),
}
"""Fields that the plain samples leave at their defaults, which are never sent."""


def _first(kind: type[m.AnyMessage]) -> tuple[Direction, m.AnyMessage]:
    return next((way, message) for way, message in FLAT if isinstance(message, kind))


def _cases() -> dict[str, tuple[Direction, m.AnyMessage]]:
    found = {f"{way.value}.{m.kind(message)}": (way, message) for way, message in FLAT}
    for name, (kind, fields) in _MORE.items():
        way, message = _first(kind)
        found[f"{way.value}.{name}"] = (way, msgspec.structs.replace(message, **fields))
    way, report = _first(m.RoundReport)
    assert isinstance(report, m.RoundReport)
    outcomes = tuple(msgspec.structs.replace(one, stats=_STATS) for one in report.outcomes)
    found[f"{way.value}.report.steps"] = (way, msgspec.structs.replace(report, outcomes=outcomes))
    way, order = _first(m.RoundOrder)
    assert isinstance(order, m.RoundOrder)
    signed = tuple(
        msgspec.structs.replace(one, assigned=bytes(range(64))) for one in order.assignments
    )
    assigned = msgspec.structs.replace(order, assignments=signed)
    found[f"{way.value}.round-order.assigned"] = (way, assigned)
    way, _ = _first(m.RoundReport)
    proof = m.WorkProof(update=b"u" * 32, size=900, base=b"b" * 32, public=_KEY, signature=2 * _KEY)
    outcomes = tuple(msgspec.structs.replace(one, proof=proof) for one in report.outcomes)
    found[f"{way.value}.report.proof"] = (way, msgspec.structs.replace(report, outcomes=outcomes))
    outcomes = tuple(msgspec.structs.replace(one, made_in=3) for one in report.outcomes)
    found[f"{way.value}.report.made-in"] = (way, msgspec.structs.replace(report, outcomes=outcomes))
    return found


CASES = _cases()
PEERS = {
    "peer.envelope": peers.encode_envelope(test_peers.ENVELOPE),
    "peer.card": peers.encode_relayed(test_peers.CARD),
    "peer.sealed": peers.encode_relayed(test_peers.PACKET),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_never_change(name: str) -> None:
    direction, message = CASES[name]
    golden = (NOW / f"{name}.msgpack").read_bytes()
    assert encode(message) == golden, "released bytes changed: add fields, never retype"
    assert decode(direction, golden) == message


SHORT = (
    "edge-to-coordinator.columns",
    "edge-to-coordinator.opinions",
    "agent-to-edge.update",
    "agent-to-edge.update.steps",
    "agent-to-edge.update.claim",
    "agent-to-edge.update.made-in",
)
"""As they were before columns had claims, and updates a signed cohort: a map of 15 fields or fewer
has a shorter header."""


@pytest.mark.parametrize("name", SHORT)
def test_a_shorter_header_is_read_as_before(name: str) -> None:
    direction, message = CASES[name]
    golden = (NOW / f"{name}.short.msgpack").read_bytes()
    assert decode(direction, golden) == message
    assert encode(message)[3:] == golden[1:]


@pytest.mark.parametrize("name", PEERS)
def test_the_bytes_between_peers_never_change(name: str) -> None:
    assert (NOW / f"{name}.msgpack").read_bytes() == PEERS[name]


@pytest.mark.parametrize("name", _MORE)
def test_a_default_is_never_sent(name: str) -> None:
    """So a field that is added changes no bytes of those that do not use it."""
    kind, fields = _MORE[name]
    _, message = _first(kind)
    assert not fields.keys() & msgspec.msgpack.decode(encode(message)).keys() - {"stats"}


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (m.TrainOrder, {"load_limit_ms": 0}),  # no limit but the device's own
        (m.RoundOrder, {"load_limit_ms": 0, "norm_limit": 0.0, "want_model": False}),
        (m.UpdateOffer, {"note": "", "first": b"", "context": None}),
        (m.TrainStats, {"steps": 0, "limited": False, "train_ms": 0, "score": 0.0, "score_n": 0}),
        (m.EdgeHello, {"rent": 0, "name": ""}),
        (m.ReportReceipt, {"too_late": False}),
    ],
)
def test_what_an_older_peer_does_not_send_asks_for_nothing(
    kind: type[msgspec.Struct], fields: dict[str, object]
) -> None:
    defaults = {field.name: field.default for field in msgspec.structs.fields(kind)}
    assert {name: defaults[name] for name in fields} == fields


def test_every_golden_file_is_a_case() -> None:
    short = {f"{name}.short" for name in SHORT}
    assert {path.stem for path in NOW.iterdir()} == {*CASES, *PEERS, *short}


TOPICS = {
    "agent-to-edge": "a/agent-1/up/edge-1/{}",
    "edge-to-agent": "a/agent-1/down/edge-1/{}",
    "edge-to-coordinator": "e/edge-1/up/{}",
    "coordinator-to-edge": "e/edge-1/down/{}",
    "edge-beacon": "e/edge-1/beacon",
    "coordinator-beacon": "c/coordinator-1/beacon",
}
"""By direction or kind; the same in every version."""
OLD = [path.stem for path in (GOLDEN / "1").iterdir() if not path.stem.startswith("peer.")]


@pytest.mark.parametrize("version", topics.EARLIER)
@pytest.mark.parametrize("name", sorted(OLD))
def test_an_earlier_protocol_is_refused(name: str, version: int) -> None:
    """No body of it is read: beacons and hellos name their version, the rest is no topic."""
    way, kind = name.split(".")[:2]
    topic = f"fedagent/{version}/site/" + TOPICS.get(kind, TOPICS[way]).format(kind)
    if kind in {"hello", "edge-hello", "edge-beacon", "coordinator-beacon"}:
        assert topics.parse(topic).version == version
        return
    with pytest.raises(TopicError, match=f"protocol {version}, not 3"):
        topics.parse(topic)


@pytest.mark.parametrize(("name", "field"), [("decline", "reason"), ("context", "available")])
def test_renamed_fields_of_protocol_1_are_not_guessed(name: str, field: str) -> None:
    data = (GOLDEN / "1" / f"agent-to-edge.{name}.msgpack").read_bytes()
    with pytest.raises(MalformedError, match=field):
        decode(Direction.AGENT_TO_EDGE, data)


@pytest.mark.parametrize("kind", [m.Hello, m.EdgeHello, m.EdgeBeacon, m.CoordinatorBeacon])
def test_hellos_and_beacons_always_name_their_version(kind: type[m.AnyMessage]) -> None:
    _, message = _first(kind)
    assert msgspec.msgpack.decode(encode(message))["protocol"] == m.PROTOCOL_VERSION


if __name__ == "__main__":  # writes the bytes of new cases; those that are there stay
    for case, data in {
        **{n: encode(message) for n, (_, message) in CASES.items()},
        **PEERS,
    }.items():
        if not (NOW / f"{case}.msgpack").exists():
            (NOW / f"{case}.msgpack").write_bytes(data)
