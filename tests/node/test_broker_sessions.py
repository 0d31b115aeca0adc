"""Live sessions: cut when revoked, one for each identity, and bounded in what they take up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from fedagent_node.broker.mosquitto import connect_packet
from fedagent_node.broker.process import Broker
from fedagent_node.errors import LinkError
from fedagent_node.site.membership import Membership
from fedagent_protocol import topics
from tests.fakes.links import Peer, broker, eventually, peer
from tests.fakes.site import Members, ident

SITE = "home"


def of(edge: Membership) -> dict[str, object]:
    return {
        "tls": edge.files,
        "certified": True,
        "owner": edge.credentials.certificate.name,
        "site": SITE,
    }


async def break_off(one: Peer) -> None:
    one.link._client.give_up("cut")
    await one.until(lambda: False in one.states)


Scene = tuple[Broker, Peer, Peer, Peer, Membership, Membership, Membership]


@asynccontextmanager
async def hall(kind: str, folder: Path, home: Members, **more: object) -> AsyncIterator[Scene]:
    """An edge's broker with its own link, and those of two agents."""
    edge, gone, other = (
        home.member("edge", "edge"),
        home.member("gone", "agent"),
        home.member("other", "agent"),
    )
    cover, filters = edge.towards("edge"), topics.edge_lan_filters(SITE, ident(edge))
    async with (
        broker(kind, folder, **of(edge), **more) as b,
        peer(b.address, "own", *filters, tls=cover) as own,
        peer(b.address, "gone", tls=gone.towards("edge")) as out,
        peer(b.address, "other", tls=other.towards("edge")) as stays,
    ):
        yield b, own, out, stays, edge, gone, other


async def test_a_revoked_identity_is_cut_and_stays_out_and_nobody_else_notices(
    kind: str, tmp_path: Path, home: Members
) -> None:
    async with hall(kind, tmp_path, home) as (b, own, out, stays, edge, gone, other):
        assert own.link.certified
        home.revoke("edge", gone)
        await b.reload()
        await b.cut([ident(gone)])
        await out.until(lambda: False in out.states)
        await eventually(lambda: out.link.counters["failed_connects"] > 0)
        assert out.states == [True, False]
        assert "revoked" in out.link.last_error
        assert stays.link.publish(up(other, edge), b"still here")
        await own.until(lambda: bool(own.heard))
        assert own.states == stays.states == [True]
        assert b.counters["restarts"] == 0


async def test_a_revoked_id_does_nothing_with_a_certificate_that_is_on_no_list(
    kind: str, tmp_path: Path, home: Members
) -> None:
    revoked = frozenset({ident(home.member("gone", "agent"))})
    async with hall(kind, tmp_path, home) as (b, own, out, stays, edge, gone, other):
        await b.reload(revoked)
        await b.cut(revoked)
        await out.until(lambda: out.states == [True, False, True])
        await alone_in(own, (stays, up(other, edge)), (out, up(gone, edge)), ident(edge))
        assert b.counters["restarts"] == 0
    async with hall(kind, tmp_path, home, revoked=revoked) as scene:
        b, own, out, stays, edge, gone, other = scene
        await alone_in(own, (stays, up(other, edge)), (out, up(gone, edge)), ident(edge))


def up(agent: Membership, edge: Membership) -> str:
    return topics.agent_up(SITE, ident(agent), ident(edge), "hello")


async def alone_in(own: Peer, stays: tuple[Peer, str], out: tuple[Peer, str], edge: str) -> None:
    """Check that of two agents one hears the edge and is heard, and the other neither."""
    beacon = topics.edge_beacon(SITE, edge)
    assert out[0].link.publish(out[1], b"out")
    await asked(out[0], beacon)  # the broker has seen what came before
    await stays[0].link.subscribe(beacon)
    assert stays[0].link.publish(stays[1], b"in")
    assert own.link.publish(beacon, b"here")
    await own.until(lambda: bool(own.heard))
    await stays[0].until(lambda: bool(stays[0].heard))
    await asked(out[0], beacon)
    assert [one.payload for one in own.heard] == [b"in"]
    assert out[0].heard == []


async def asked(one: Peer, topic: str) -> None:
    """Subscribe; mosquitto refuses none, and delivers nothing of what it would refuse."""
    with suppress(LinkError):
        await one.link.subscribe(topic)


async def test_a_certificate_has_one_session_and_the_broker_tells_who_came_twice(
    kind: str, tmp_path: Path, home: Members
) -> None:
    edge, agent = home.member("edge", "edge"), home.member("agent", "agent")
    told: list[str] = []
    async with broker(kind, tmp_path, **of(edge)) as b:
        b.on_taken_over = told.append
        async with (
            peer(b.address, "one", tls=agent.towards("edge")) as one,
            peer(b.address, "clone", tls=agent.towards("edge")),
        ):
            await one.until(lambda: False in one.states)
            await eventually(lambda: bool(told))
        assert set(told) == {agent.credentials.certificate.name}


async def test_a_broker_says_whose_connection_broke_and_nothing_of_who_left_or_lied(
    kind: str, tmp_path: Path, home: Members
) -> None:
    edge, agent = home.member("edge", "edge"), home.member("agent", "agent")
    gone, other = (topics.agent_to_all(SITE, one, "gone") for one in (ident(agent), "f" * 32))
    async with (
        broker(kind, tmp_path, **of(edge)) as b,
        peer(
            b.address, "own", *topics.edge_lan_filters(SITE, ident(edge)), tls=edge.towards("edge")
        ) as own,
    ):
        async with peer(b.address, "a", tls=agent.towards("edge"), will=(other, b"a lie")) as one:
            await break_off(one)
        async with peer(b.address, "a", tls=agent.towards("edge"), will=(gone, b"left")):
            pass
        async with peer(b.address, "a", tls=agent.towards("edge"), will=(gone, b"gone")) as one:
            await break_off(one)
        await own.until(lambda: bool(own.heard))
        assert [(one.topic, one.payload) for one in own.heard] == [(gone, b"gone")]


async def test_nobody_without_a_certificate_takes_over_a_session_by_its_name(
    kind: str, tmp_path: Path
) -> None:
    """Ids are no secret, and names of sessions were made of them."""
    ident = "e" * 32
    async with (
        broker(kind, tmp_path) as b,
        peer(b.address, f"{ident}-lan") as own,
    ):
        for name in (ident, f"{ident}-lan", f"e/{ident}"):
            reader, writer = await asyncio.open_connection(b.address.host, b.address.port)
            writer.write(connect_packet(name))
            assert (await reader.readexactly(4))[3] == 0
            writer.close()
        assert own.states == [True]
        assert b.counters["taken_over"] == 0


async def test_nobody_waits_for_ever_at_the_embedded_brokers_door(
    tmp_path: Path, home: Members
) -> None:
    """Connections beyond the bound are closed at once, and honest ones still served."""
    edge, agent = home.member("edge", "edge"), home.member("agent", "agent")
    async with broker("embedded", tmp_path, **of(edge)) as b:
        where = (b.address.host, b.address.port)
        idle = [await asyncio.open_connection(*where) for _ in range(400)]
        try:
            await eventually(lambda: b.counters["refused_connects"] >= 400 - 256)
        finally:
            for _, writer in idle:
                writer.close()
        async with peer(b.address, "honest", tls=agent.towards("edge")) as one:
            assert one.link.connected


async def test_a_second_link_to_one_broker_does_not_take_the_firsts_place(
    kind: str, tmp_path: Path, home: Members
) -> None:
    edge, agent = home.member("edge", "edge"), home.member("agent", "agent")
    async with (
        broker(kind, tmp_path, **of(edge)) as b,
        peer(b.address, "one", tls=agent.towards("edge")) as one,
    ):
        assert one.link.peer == ident(edge)
        cover = agent.towards(
            "edge", elsewhere=lambda found: "there" if found == one.link.peer else ""
        )
        two = Peer(b.address, "two", tls=cover)
        await two.link.start()
        await eventually(lambda: "already connected at there" in two.link.last_error)
        await two.link.stop()
        assert one.states == [True]
        assert b.counters["taken_over"] == 0
