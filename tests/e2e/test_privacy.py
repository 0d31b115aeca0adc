"""What an edge and everybody on the wire sees of devices: sums, noise, and no sample (G1, G2)."""

import base64
import gzip
import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from fedagent_coordinator.books.reader import open_reader
from fedagent_node.link import Arrival
from fedagent_protocol import topics
from fedagent_protocol.messages import MaskAsk, MaskOpening, UpdateOffer
from fedagent_protocol.tensors import locate
from fedagent_testbed.local import RoleProcess
from tests.fakes.leak_search import inflated
from tests.fakes.voices import read

from .listener import Listener, shared_broker
from .support import BROKERS, PATIENT, check_books, new_field, start_small

pytestmark = pytest.mark.slow

SECURE = ("secure_aggregation.minimum_cohort=3", "policy.name=all", "budget.per_edge=9")
LOCAL = ("privacy.mode=local", "rounds.weighting=uniform", "limits.norm=0", "privacy.clip=0.5")
CANARY = "canary-f3b1c09e-of-one-device"
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


def opened(heard: list[Arrival], kind: type) -> list[object]:
    parsed = ((topics.parse(one.topic), one.payload) for one in heard)
    messages = (read(topic.direction, payload) for topic, payload in parsed)
    return [message for message in messages if isinstance(message, kind)]


@pytest.mark.parametrize("broker", BROKERS)
def test_edges_add_up_what_they_cannot_read(tmp_path: Path, broker: str) -> None:
    """Three edges, a cohort each, over real brokers."""
    with new_field(tmp_path) as field:
        coordinator = start_small(
            field, rounds=3, edges=3, agents=9, broker=broker, sets=SECURE, wait_agents=9
        )
        coordinator.wait("end", timeout_s=90)
        coordinator.wait_exit()
        check_books(coordinator)
        folder = Path(str(coordinator.config["data_dir"]))
    with open_reader(folder) as reader:
        rows = reader.edge_results(reader.run().run_id)
        outcomes = reader.outcomes(reader.run().run_id)
    done = [row for row in rows if not row.failed]
    void = [row.failed for row in rows if row.failed]
    assert done
    # Who is alone at an edge, or one of two, is in no sum.
    assert all("secure aggregation" in why or "updates" in why for why in void), void
    samples = [row.num_samples for row in outcomes if row.used]
    assert len(samples) >= 3
    assert set(samples) == {1}, "how many samples a device has is told inside the sum alone"


def test_who_hears_everything_hears_no_update(tmp_path: Path) -> None:
    with (
        shared_broker(tmp_path / "broker") as address,
        new_field(tmp_path) as field,
        Listener(address) as sniffer,
    ):
        coordinator = start_small(field, rounds=3, agents=4, broker=address, sets=SECURE)
        coordinator.wait("end", timeout_s=90)
        heard = list(sniffer.heard)
    offers = [one for one in opened(heard, UpdateOffer) if isinstance(one, UpdateOffer)]
    assert len(offers) >= 9
    for offer in offers:
        (tensor,) = locate(offer.first)
        assert tensor.spec.name == "masked"
        words = np.frombuffer(offer.first[tensor.start : tensor.stop], "<u8")
        # Of a number that is not masked the high bits are all alike.
        assert (words / 2.0**64).mean() == pytest.approx(0.5, abs=0.1)
        assert offer.stats.num_samples == 1
    asks = [one for one in opened(heard, MaskAsk) if isinstance(one, MaskAsk)]
    assert all(len(ask.survivors) >= 3 for ask in asks)
    assert opened(heard, MaskOpening)


# ------------------------------------------------------------------------ canaries


def needles() -> list[bytes]:
    """Return the canaries in every form that a leak could have."""
    found: list[bytes] = []
    floats = canary_row()[:2]
    raws = [CANARY.encode(), ",".join(map(repr, floats)).encode()]
    raws += [struct.pack(form, *floats) for form in ("<2d", ">2d", "<2f", ">2f")]
    for raw in raws:
        found += [raw, raw.hex().encode(), raw.hex().upper().encode()]
        for shift in range(3):
            # Whatever stands before it: the middle of its base64 is one of three.
            coded = base64.b64encode(b"x" * shift + raw + b"xx")
            found.append(coded[4 * ((shift + 2) // 3) : 4 * ((shift + len(raw)) // 3)])
    assert all(len(one) >= 8 for one in found)
    return found


def canary_row() -> list[float]:
    return [0.123456789012345, 0.987654321098765, -0.192837465564738, 0.564738291056473]


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
    looked_for = needles()
    return [
        name
        for name, data in where.items()
        if any(needle in part for part in unpacked(data) for needle in looked_for)
    ]


def seen(field_dir: Path, heard: list[Arrival]) -> dict[str, bytes]:
    """Return all that others have of devices: the wire, logs of all, disks of edges and books."""
    wire = {f"{i} {one.topic}": one.payload for i, one in enumerate(heard)}
    everything = {f"wire {name}": data for name, data in wire.items()}
    for path in field_dir.rglob("*"):
        device = path.parent != field_dir and path.relative_to(field_dir).parts[0].startswith("a")
        if path.is_file() and not device:
            name, data = str(path.relative_to(field_dir)), path.read_bytes()
            everything[name] = data
            if data.startswith(b"SQLite format 3\0"):
                everything[f"{name}, inflated"] = b"|".join(inflated(path))
    return everything


def test_the_search_finds_what_it_looks_for() -> None:
    row = canary_row()
    packed = struct.pack("<4d", *row)
    for leak in (
        packed,
        struct.pack(">4f", *row),
        gzip.compress(b"log: " + packed),
        zlib.compress(b"log: " + CANARY.encode()),
        base64.b64encode(b"a" + packed),
        b"row " + packed.hex().encode(),
        f"ValueError: {row[0]!r},{row[1]!r},1".encode(),
    ):
        assert leaks({"x": b"before" + leak + b"after"}) == ["x"]
    assert leaks({"x": np.random.default_rng(0).bytes(100_000)}) == []


@pytest.mark.parametrize("sets", [(), (*SECURE, *LOCAL)], ids=["plain", "private"])
def test_no_canary_leaves_a_device(tmp_path: Path, sets: tuple[str, ...]) -> None:
    """G1, and G2: lines that no sample can be read from are in no message and in no log."""
    if sets:
        pytest.importorskip("opendp", reason="opendp is not installed")
    recipe = tmp_path / "canaries.toml"
    recipe.write_text(RECIPE)
    rng = np.random.default_rng(3)
    streams: list[Path] = []
    for number in range(4):
        rows = rng.normal(scale=0.5, size=(60, 4))
        lines = [",".join(map(repr, map(float, row))) + f",{int(row[0] > 0)}" for row in rows]
        lines += [",".join(map(repr, canary_row())) + ",1"] * 40
        lines += [f"{CANARY},0.5,0.5,0.5,1", f"0.1,0.2,0.3,0.4,{CANARY}", CANARY] * 3
        # A stream reads its header first; what cannot be read comes after what can.
        streams.append(tmp_path / f"stream-{number}.csv")
        streams[-1].write_text("\n".join(["a,b,c,d,y", *lines]) + "\n")
    place = tmp_path / "field"
    place.mkdir()
    with shared_broker(tmp_path / "broker") as address, Listener(address) as sniffer:
        with new_field(place) as field:
            coordinator: RoleProcess = field.coordinator(
                recipe, broker=address, wait_edges=1, wait_agents=4, sets=(*PATIENT, *sets)
            )
            field.edge("edge-0", broker=address, log_level="debug")
            for index, stream in enumerate(streams):
                field.agent(f"agent-{index}", f"csv:{stream},label=last", log_level="debug")
            coordinator.wait("end", timeout_s=90)
            used = sum(1 for one in sniffer.heard if one.topic.endswith("/update"))
            assert used >= 4
            refused = [
                one.first("samples") for name, one in field.processes.items() if "agent" in name
            ]
            assert any(refused), "the lines that are no samples were read"
        everything = seen(place, list(sniffer.heard))
    assert {"edge-0.log", "agent-0.log", "coordinator.log"} <= everything.keys()
    assert leaks(everything) == []
