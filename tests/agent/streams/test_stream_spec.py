"""Descriptions of streams: what they mean, and errors that teach."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_agent.streams.spec import (
    CsvSpec,
    Field,
    MqttSpec,
    ReplaySpec,
    SeriesSpec,
    StreamSpecError,
    parse_stream,
)

FULL_SERIES = (
    "series:w.npz,station=3,features=t+h,predict=t,ahead=2,lags=6,mean=12.5+-3,deviation=11+2,"
    "rate=5,accelerate=2,start=9,buffer=8"
)


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("digits", ReplaySpec()),
        ("digits:labels=3+7,rate=20", ReplaySpec(labels=(3, 7), rate=20.0)),
        ("digits:part=2/4,start=0,buffer=9", ReplaySpec(part=(2, 4), start=0, buffer=9)),
        ("replay:a/b.npz,rate=0.5", ReplaySpec(dataset="a/b.npz", rate=0.5)),
        (
            "replay:u.data,order=time,accelerate=3600",
            ReplaySpec(dataset="u.data", by_time=True, accelerate=3600.0),
        ),
        (
            "replay:a9a.gz,sparse=1,width=123",
            ReplaySpec(dataset="a9a.gz", sparse=True, width=123),
        ),
        ("series:w.npz,predict=t", SeriesSpec(path="w.npz", predict="t")),
        (
            FULL_SERIES,
            SeriesSpec(
                path="w.npz",
                station="3",
                features=("t", "h"),
                predict="t",
                ahead=2,
                lags=6,
                mean=(12.5, -3.0),
                deviation=(11.0, 2.0),
                rate=5.0,
                accelerate=2.0,
                start=9,
                buffer=8,
            ),
        ),
        (
            "mqtt://box/t?features=temp:float32:-40..60,hum:float32:0..,n:int16&label=y:uint8:..1",
            MqttSpec(
                host="box",
                port=1883,
                topic="t",
                features=("temp", "hum", "n"),
                label="y",
                declared=(
                    Field("temp", "float32", -40.0, 60.0),
                    Field("hum", "float32", 0.0),
                    Field("n", "int16"),
                    Field("y", "uint8", most=1.0),
                ),
            ),
        ),
        ("csv:/path.csv,label=last", CsvSpec(path=Path("/path.csv"))),
        (
            "csv:/p.csv,label=kind,features=a+b,dtype=int16",
            CsvSpec(path=Path("/p.csv"), label="kind", features=("a", "b"), dtype="int16"),
        ),
        (
            "mqtt://box:1884/home/t?features=a,b&label=y",
            MqttSpec(host="box", port=1884, topic="home/t", features=("a", "b"), label="y"),
        ),
        (
            "mqtts://box/t?features=a&label=y&ca=c.pem&cert=d.pem&key=e.pem",
            MqttSpec(
                host="box",
                port=8883,
                topic="t",
                features=("a",),
                label="y",
                tls=(Path("c.pem"), Path("d.pem"), Path("e.pem")),
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
        ("files:x", "stream", "no kind of stream"),
        ("digits:label=3", "label", "did you mean labels?"),
        ("digits:labels=three", "labels", "labels=3+7"),
        ("digits:labels=-1", "labels", "no number"),
        ("digits:rate=0", "rate", "write rate=20"),
        ("digits:rate=nan", "rate", "write rate=20"),
        ("digits:rate", "rate", "has no value"),
        ("digits:part=5/4", "part", "no part 5 of 4"),
        ("digits:part=1", "part", "part=1/4"),
        ("csv:", "csv", "has no value"),
        ("csv:/p,dtype=complex", "dtype", "float64"),
        ("mqtt://box", "mqtt", "features=a,b&label=y"),
        ("mqtt://box/t?label=y", "mqtt", "features"),
        ("mqtt://box:port/t?label=y", "mqtt", "features"),
        ("mqtts://box/t?features=a&label=y", "mqtt", "&ca="),
        ("digits:order=time", "order", "no option"),
        ("replay:a,order=size", "order", "order=time"),
        ("replay:a,order=time,rate=3", "rate", "accelerate=60"),
        ("replay:a,sparse=yes", "sparse", "sparse=1"),
        ("replay:a,accelerate=-1", "accelerate", "over 0"),
        ("series:w.npz", "predict", "predict=COLUMN"),
        ("series:w.npz,predict=t,mean=1", "mean", "one number for each"),
        ("series:w.npz,predict=t,features=t,deviation=0", "deviation", "other than 0"),
        ("series:w.npz,predict=t,lags=0", "lags", "no number"),
        ("mqtt://box/t?features=a:real&label=y", "features", "float32"),
        ("mqtt://box/t?features=a:int16:5&label=y", "features", "-40..60"),
        ("mqtt://box/t?features=a:int16:x..1&label=y", "features", "write a:int16:-40..60"),
        ("mqtt://box/t?features=a:int16:5..1&label=y", "features", "smaller one first"),
        ("mqtt://box/t?features=:int16&label=y", "features", "has no name"),
        ("mqtt://box/t?features=a&label=y:int16:x..1", "label", "is no number"),
        ("digits\x00", "stream", "printable"),
    ],
)
def test_every_error_names_a_key_and_a_hint(text: str, key: str, says: str) -> None:
    with pytest.raises(StreamSpecError) as caught:
        parse_stream(text)
    assert caught.value.key == key
    assert says in str(caught.value)


@given(st.one_of(st.text(), st.from_regex(r"(digits|csv|mqtt|replay|series)://?[a-z=,+?&0-9/.:]*")))
def test_any_text_is_a_stream_or_a_typed_error(text: str) -> None:
    try:
        parse_stream(text)
    except StreamSpecError as error:
        assert error.hint


def test_the_agents_side_needs_no_numpy() -> None:
    code = (
        "import sys, fedagent_agent.trainer.client, fedagent_agent.streams.spec, "
        "fedagent_task.recipe; sys.exit('numpy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
