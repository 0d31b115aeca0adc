"""What an edge and everybody on the wire sees of devices: sums, noise, and no sample (G1, G2).

A sniffer subscribes to everything, on a broker that allows it, for a whole run.
"""

import base64
import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from fedagent_protocol import topics
from fedagent_protocol.messages import MaskAsk, MaskOpening, UpdateOffer, kind
from fedagent_protocol.tensors import locate
from tests.fakes.attacker import Attacker
from tests.fakes.leak_search import Search, inflated
from tests.fakes.voices import read

from .support import PATIENT, new_field, shared_broker

pytestmark = pytest.mark.slow
M = TypeVar("M")
Heard = list[tuple[str, bytes]]

SECURE = ("secure_aggregation.minimum_cohort=3", "policy.name=all", "budget.per_edge=9")
LOCAL = ("privacy.mode=local", "rounds.weighting=uniform", "limits.norm=0", "privacy.clip=0.5")
CANARY = "canary-f3b1c09e-of-one-device"
ROW = [0.123456789012345, 0.987654321098765, -0.192837465564738, 0.564738291056473]
RECIPE = """
name = "canaries"
[model]
kind = "softmax"
features = 4
classes = 2
[learner]
batch = 10
[rounds]
count = 4
deadline_s = 20
max_wait_s = 30
[budget]
per_edge = 9
[policy]
name = "all"
"""


def opened(heard: Heard, what: type[M]) -> list[M]:
    parsed = ((topics.parse(topic), payload) for topic, payload in heard)
    messages = (read(topic.direction, payload) for topic, payload in parsed)
    return [message for message in messages if isinstance(message, what)]


def unpacked(data: bytes) -> Iterator[bytes]:
    """Yield the bytes, and what any gzip or zlib stream in them holds."""
    yield data
    for magic, bits in ((b"\x1f\x8b\x08", 31), (b"\x78\x9c", 15), (b"\x78\x01", 15)):
        start = data.find(magic)
        while start >= 0:
            with suppress(zlib.error):
                yield zlib.decompressobj(bits).decompress(data[start:], 1 << 20)
            start = data.find(magic, start + 1)


def leaks(where: dict[str, bytes]) -> list[str]:
    """Return where a sample or an unreadable line is; four bytes may be any number by chance."""
    search, text = Search(), CANARY.encode()
    for value in ROW:
        search.add(value, str(value))
    coded = [base64.b64encode(b"x" * shift + text)[4:-4] for shift in range(3)]
    words = [text, text.hex().encode(), text.hex().upper().encode(), *coded]
    return [
        name
        for name, data in where.items()
        for part in unpacked(data)
        if any(word in part for word in words)
        or len({leak.what for leak in search.look(name, part)}) > 1
        or search.look(name, part, short=False)
    ]


def seen(field_dir: Path, heard: Heard) -> dict[str, bytes]:
    """Return all that others have of devices: the wire, logs of all, disks of edges and books."""
    everything = {f"wire {i} {topic}": payload for i, (topic, payload) in enumerate(heard)}
    for path in field_dir.rglob("*"):
        device = path.parent != field_dir and path.relative_to(field_dir).parts[0].startswith("a")
        if path.is_file() and not device:
            name, data = str(path.relative_to(field_dir)), path.read_bytes()
            everything[name] = data
            if data.startswith(b"SQLite format 3\0"):
                everything[f"{name}, inflated"] = b"|".join(inflated(path))
    return everything


def test_the_search_finds_what_it_looks_for() -> None:
    packed = np.array(ROW, "<f8").tobytes()
    for leak in (
        packed,
        np.array(ROW, ">f4").tobytes(),
        gzip.compress(b"log: " + packed),
        zlib.compress(b"log: " + CANARY.encode()),
        base64.b64encode(b"a" + packed),
        b"row " + packed.hex().encode(),
        f"ValueError: {ROW[0]!r},{ROW[1]!r},1".encode(),
    ):
        assert leaks({"x": b"before" + leak + b"after"})
    assert leaks({"x": np.random.default_rng(0).bytes(100_000)}) == []


@pytest.mark.parametrize(
    "sets",
    [(), pytest.param((*SECURE, *LOCAL), marks=pytest.mark.nightly)],
    ids=["plain", "private"],
)
def test_no_canary_leaves_a_device(tmp_path: Path, sets: tuple[str, ...]) -> None:
    """Samples, and lines that none can be read from, are in no documented message and no log."""
    if sets:
        pytest.importorskip("opendp", reason="opendp is not installed")
    recipe, place = tmp_path / "canaries.toml", tmp_path / "field"
    recipe.write_text(RECIPE)
    place.mkdir()
    rng = np.random.default_rng(3)
    streams: list[Path] = []
    for number in range(4):
        rows = rng.normal(scale=0.5, size=(60, 4))
        lines = [",".join(map(repr, map(float, row))) + f",{int(row[0] > 0)}" for row in rows]
        lines += [",".join(map(repr, ROW)) + ",1"] * 40
        lines += [f"{CANARY},0.5,0.5,0.5,1", f"0.1,0.2,0.3,0.4,{CANARY}", CANARY] * 3
        # A stream reads its header first; what cannot be read comes after what can.
        streams.append(tmp_path / f"stream-{number}.csv")
        streams[-1].write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
    with shared_broker(tmp_path / "broker") as address, Attacker(address) as sniffer:
        with new_field(place) as field:
            coordinator = field.coordinator(
                recipe, broker=address, wait_edges=1, wait_agents=4, sets=(*PATIENT, *sets)
            )
            field.edge("edge-0", broker=address, log_level="debug")
            for index, stream in enumerate(streams):
                field.agent(f"agent-{index}", f"csv:{stream},label=last", log_level="debug")
            coordinator.wait("end")
            agents = [one for name, one in field.processes.items() if "agent" in name]
            assert any(one.first("samples") for one in agents), "lines that are none were read"
        heard = list(sniffer.heard)
        everything = seen(place, heard)
    kinds = set()
    for name, payload in heard:
        topic = topics.parse(name)
        assert kind(read(topic.direction, payload)) == topic.kind, "it is documented"
        kinds.add(topic.kind)
    assert {"update", "order", "report", "columns"} <= kinds
    assert {"edge-0.log", "agent-0.log", "coordinator.log"} <= everything.keys()
    assert leaks(everything) == []
    if sets:
        check_masks(heard)


def check_masks(heard: Heard) -> None:
    """Who hears everything hears no update of a masked round."""
    offers, masked = opened(heard, UpdateOffer), b""
    for offer in offers:
        (tensor,) = locate(offer.first)
        assert tensor.spec.name == "masked"
        masked += offer.first[tensor.start : tensor.stop]
        assert offer.stats.num_samples == 1, "how many there are is told inside the sum alone"
    assert len(offers) >= 12
    # Of numbers that are not masked the high bytes are all alike.
    assert masked.count(0) + masked.count(255) < len(masked) / 20
    assert all(len(ask.survivors) >= 3 for ask in opened(heard, MaskAsk))
    assert opened(heard, MaskOpening)
