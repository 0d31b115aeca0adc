"""Descriptions of streams: what they mean, and errors that teach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.streams import parse_stream
from fedagent_agent.streams.kinds import Csv, Digits, Mqtt, Replay
from fedagent_agent.streams.spec import StreamError
from fedagent_node.address import BrokerAddress


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("digits", Digits()),
        ("digits:labels=3+7,rate=20", Digits(labels=(3, 7), rate=20.0)),
        ("digits:part=2/4,start=0,buffer=9", Digits(part=(2, 4), start=0, buffer=9)),
        (
            "replay:a9a.gz,sparse=1,width=123",
            Replay(path="a9a.gz", sparse=True, width=123),
        ),
        (
            "csv:/p.csv,label=kind,features=a+b",
            Csv(path="/p.csv", label="kind", features=("a", "b")),
        ),
        (
            "mqtt://box:1884/home/t?features=a,b&label=y",
            Mqtt(broker=BrokerAddress("box", 1884), topic="home/t", features=("a", "b"), label="y"),
        ),
        (
            "mqtts://box/t?features=a&label=y&ca=c.pem&cert=d.pem&key=e.pem",
            Mqtt(
                broker=BrokerAddress("box", 8883, "mqtts"),
                topic="t",
                features=("a",),
                label="y",
                ca="c.pem",
                cert="d.pem",
                key="e.pem",
            ),
        ),
    ],
)
def test_a_line_of_text_is_a_stream(text: str, spec: object) -> None:
    assert parse_stream(text) == spec


@pytest.mark.parametrize(
    ("text", "key", "says"),
    [
        ("", "stream", "write digits"),
        ("files:x", "stream", "not a kind of stream"),
        ("digits:label=3", "label", "did you mean labels?"),
        ("digits:labels=three", "labels", "labels=3+7"),
        ("digits:labels=²", "labels", "labels=3+7"),
        ("digits:rate=0", "rate", "write rate=20"),
        ("digits:rate", "rate", "has no value"),
        ("digits:part=5/4", "part", "no part 5 of 4"),
        ("csv:", "csv", "has no value"),
        ("mqtt://box", "mqtt", "features=a,b&label=y"),
        ("mqtt://box/t?features=a", "mqtt", "needs a label"),
        ("mqtt://box/t%23?features=a&label=y", "mqtt", "needs a host and a topic"),
        ("mqtt://[/t?features=a&label=y", "mqtt", "is not an address"),
        ("mqtts://box/t?features=a&label=y", "mqtt", "&ca="),
        ("replay:a,sparse=yes", "sparse", "sparse=1"),
        ("mqtt://box/t?features=a:real&label=y", "features", "LEAST..MOST"),
        ("mqtt://box/t?features=a:5..1&label=y", "features", "LEAST..MOST"),
        ("mqtt://box/t?features=a&label=y:x..1", "label", "is no field"),
        ("digits\x00", "stream", "printable"),
    ],
)
def test_every_error_names_a_key_and_a_hint(text: str, key: str, says: str) -> None:
    with pytest.raises(StreamError) as caught:
        parse_stream(text)
    assert caught.value.key == key
    assert says in str(caught.value)


@given(st.builds(str.__add__, st.sampled_from(["", "csv:", "digits:", "mqtt://h"]), st.text()))
def test_any_text_is_a_stream_or_a_typed_error(text: str) -> None:
    try:
        parse_stream(text)
    except StreamError as error:
        assert error.hint
