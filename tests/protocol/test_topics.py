"""Topics are built and parsed in one place, and parse back to what built them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_protocol import topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.errors import ProtocolError

IDS = st.from_regex(r"[a-z0-9][a-z0-9-]{0,20}", fullmatch=True)


@given(IDS, IDS, IDS)
def test_topics_parse_back(site: str, one: str, two: str) -> None:
    up = topics.parse(topics.agent_up(site, one, two, "hello"))
    assert (up.site, up.agent, up.edge, up.kind) == (site, one, two, "hello")
    assert up.direction is Direction.AGENT_TO_EDGE
    down = topics.parse(topics.agent_down(site, one, two, "order"))
    assert (down.agent, down.edge, down.direction) == (one, two, Direction.EDGE_TO_AGENT)
    assert topics.parse(topics.edge_beacon(site, one)).edge == one
    assert topics.parse(topics.edge_up(site, one, "report")).direction is (
        Direction.EDGE_TO_COORDINATOR
    )
    assert topics.parse(topics.edge_down(site, one, "open")).direction is (
        Direction.COORDINATOR_TO_EDGE
    )
    assert topics.parse(topics.coordinator_beacon(site, two)).coordinator == two


@given(st.text(max_size=80))
def test_any_text_is_a_topic_or_a_topic_error(text: str) -> None:
    for candidate in (text, f"{topics.ROOT}/{text}"):
        try:
            topics.parse(candidate)
        except ProtocolError as error:
            assert error.reason == "topic"


@pytest.mark.parametrize("bad", ["", "-a", "A", "a/b", "a+", "#", "a" * 65, "ä"])
def test_an_id_is_safe_in_a_topic(bad: str) -> None:
    with pytest.raises(ProtocolError, match="not an id"):
        topics.check_id(bad)


def test_only_beacons_are_heard_across_versions() -> None:
    beacon = topics.parse("fedagent/2/site/e/edge-1/beacon")
    assert (beacon.version, beacon.edge) == (2, "edge-1")
    with pytest.raises(ProtocolError, match="protocol 2, not"):
        topics.parse("fedagent/2/site/a/agent-1/up/edge-1/hello")
