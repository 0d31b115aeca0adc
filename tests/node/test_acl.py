"""One table of who may read and write what, held against both brokers over TLS and in plain."""

import asyncio
from contextlib import AsyncExitStack, suppress
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_node.broker.acl import AccessList, covers
from fedagent_node.errors import LinkError
from fedagent_node.site.certificates import Role
from fedagent_protocol import topics
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.topics import ROOT
from tests.fakes.links import Peer, broker, eventually, peer
from tests.fakes.site import Members

SITE = "home"
QUIET_S = 0.3
"""Long after what is allowed has arrived, what is not would have."""
LEVEL = st.sampled_from(["fedagent", ROOT.split("/")[1], "home", "a", "e", "up", "x", "+", "#"])


KINDS: dict[str, Role] = {
    "agent": "agent",
    "other-agent": "agent",
    "edge": "edge",
    "other-edge": "edge",
    "coordinator": "coordinator",
}


def all_topics(ids: dict[str, str]) -> list[str]:
    """Return a topic of every form, of everybody, and some of no form."""
    found = ["home/temperature", "fedagent", f"{ROOT}/other/e/x/beacon"]
    edges, agents = ("edge", "other-edge"), ("agent", "other-agent")
    for edge, agent in product(edges, agents):
        found.append(topics.agent_up(SITE, ids[agent], ids[edge], "hello"))
        found.append(f"fedagent/1/{SITE}/a/{ids[agent]}/up/{ids[edge]}/hello")
        found.append(topics.agent_down(SITE, ids[agent], ids[edge], "order"))
    for agent, each in product(agents, ("hello", "gone")):
        found.append(topics.agent_to_all(SITE, ids[agent], each))
    for edge in edges:
        found.append(topics.edge_beacon(SITE, ids[edge]))
        found.append(topics.edge_up(SITE, ids[edge], "edge-hello"))
        found.append(topics.edge_down(SITE, ids[edge], "round-order"))
    return [*found, topics.coordinator_beacon(SITE, ids["coordinator"])]


async def _subscribed(one: Peer, each: str) -> None:
    with suppress(LinkError):
        await one.link.subscribe(each)


@pytest.mark.parametrize("owner", ["edge", "coordinator"])
async def test_a_broker_delivers_what_the_table_allows_and_nothing_else(
    kind: str, owner: str, tmp_path: Path, home: Members
) -> None:
    members = {each: home.member(each, role) for each, role in KINDS.items()}
    names = {each: one.credentials.certificate.name for each, one in members.items()}
    ids = {each: name[2:] for each, name in names.items()}
    table = AccessList(SITE, (names[owner],))
    known = all_topics(ids)
    sneaky = ["#", "$SYS/#", "+/+/+/#", f"{ROOT}/{SITE}/a/+/up/#", f"{ROOT}/{SITE}/a/#"]
    spec = {"certified": True, "owner": names[owner], "site": SITE}
    async with AsyncExitStack() as stack:
        b = await stack.enter_async_context(
            broker(kind, tmp_path, tls=members[owner].files, **spec)
        )
        peers = {
            each: await stack.enter_async_context(
                peer(b.address, f"mine-{each}", tls=member.towards(KINDS[owner]))
            )
            for each, member in members.items()
        }
        for one in peers.values():
            await asyncio.gather(*(_subscribed(one, each) for each in (*known, *sneaky)))
        for each, one in peers.items():
            for topic in known:
                assert one.link.publish(topic, each.encode())
        wanted = {
            (topic, writer, reader)
            for topic, writer, reader in product(known, names, names)
            if table.allows(names[writer], "write", topic)
            and table.allows(names[reader], "read", topic)
        }

        def heard() -> set[tuple[str, str, str]]:
            return {
                (arrival.topic, arrival.payload.decode(), each)
                for each, one in peers.items()
                for arrival in one.heard
            }

        await eventually(lambda: heard() >= wanted)
        await asyncio.sleep(QUIET_S)
        assert heard() == wanted
        assert all(one.link.connected for one in peers.values())
        if kind == "embedded":  # mosquitto has no word of it without a line for every message
            await eventually(lambda: b.counters["denied_publish"] > 0)
            await eventually(lambda: b.counters["denied_subscribe"] >= len(sneaky))


def test_what_the_roles_subscribe_to_is_allowed() -> None:
    table = AccessList(SITE, ("e/e1", "c/c1"))
    for me, filters in (
        ("a/a1", topics.agent_filters(SITE, "a1")),
        ("e/e1", topics.edge_lan_filters(SITE, "e1")),
        ("e/e1", topics.edge_wan_filters(SITE, "e1")),
        ("c/c1", topics.coordinator_filters(SITE)),
    ):
        assert all(table.allows(me, "read", each) for each in filters)
    assert not table.allows("", "read", topics.edge_beacon(SITE, "e1"))
    assert not table.allows("b/b1", "read", topics.edge_beacon(SITE, "e1"))
    assert not table.allows("a/a1", "write", f"fedagent/1/{SITE}/a/a1/up/e1/hello"), (
        "another version"
    )
    assert not table.allows("a/../e", "write", "x")


@given(st.lists(LEVEL, min_size=1, max_size=5), st.lists(LEVEL, min_size=1, max_size=5))
def test_a_pattern_covers_a_filter_only_if_it_has_all_its_topics(
    wanted: list[str], given_levels: list[str]
) -> None:
    pattern, each = (_filter(levels) for levels in (wanted, given_levels))
    if covers(pattern, each):
        # What a wildcard may stand for is in the pattern as well.
        for filling in ("x", "zz"):
            topic = each.replace("+", filling).replace("#", f"{filling}/{filling}")
            assert covers(pattern, topic)


def _filter(levels: list[str]) -> str:
    """Return a filter: what follows a # is left out."""
    end = levels.index("#") + 1 if "#" in levels else len(levels)
    return "/".join(levels[:end])


def test_a_revoked_id_may_do_nothing_on_any_broker() -> None:
    table = AccessList(SITE, ("e/e1", "e/e2", "c/c1"), frozenset({"a1", "e2"}))
    for name in ("a/a1", "e/e2", "e/a1"):
        assert list(table.rules(name)) == []
    assert list(table.rules("a/a2")) == list(AccessList(SITE).rules("a/a2"))
    lines = table.mosquitto().splitlines()
    for name in ("a/a1", "e/e2"):
        at = lines.index(f"user {name}")
        assert lines[at + 1] == "topic deny #"
        assert at + 2 == len(lines) or lines[at + 2].startswith("user "), "and no topic beside it"
        assert lines.count(f"user {name}") == 1


@pytest.mark.parametrize("named", ["a/a1", "e/E1", "e/x\ntopic #", "e1", "b/b1"])
def test_only_ids_come_into_the_files(named: str) -> None:
    with pytest.raises(ProtocolError, match=r"neither an edge|not an id"):
        AccessList(SITE, (named,))
    with pytest.raises(ProtocolError, match="not an id"):
        AccessList("home\npattern read #", ())
    with pytest.raises(ProtocolError, match="not an id"):
        AccessList(SITE, (), frozenset({f"{named}\ntopic read #"}))
