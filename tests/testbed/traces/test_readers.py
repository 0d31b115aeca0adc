"""Readers: small files that the tests make, and the real ones where they are."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedagent_task.errors import DatasetError
from fedagent_testbed.traces import (
    PACKET_BITS,
    read_cpu_scores,
    read_down_bps,
    read_links,
    read_mahimahi,
    read_rate_archive,
    read_rtt,
    read_spot_prices,
    recorded,
)

NDT = b'[{"date": "2022-06-27", "dl_mbps": "10.5", "ul_mbps": "4.25"}]'
SPOT = (
    b"zone,instance_type,os,timestamp,price_usd_per_hour,on_demand_usd_per_hour\n"
    b"a,c3,Linux,2015-03-11 16:54:38+00:00,0.03,0.21\n"
    b"b,c3,Linux,2015-03-11 16:54:28+00:00,0.05,0.21\n"
    b"a,c3,Linux,2015-03-11 16:55:38+00:00,0.42,0.21\n"
)
PHONES = b'[{"Model": " A ", "CPU_F_AI_Score": "3744"}, {"Model": "A", "CPU_F_AI_Score": 9}]'


def packed(members: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as archive:  # type: ignore[call-overload] # any mode
        for name, body in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return out.getvalue()


def npz(**arrays: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type] # numpy's stub has a bool keyword
    return out.getvalue()


RATES = packed({"bus_1": b"0.0\t2.5\n1.0\t4.0\n1.5\t0\n", "odd name": b"0.5 1\n\n2.5 3\n"})
STAMPS = b"0\n0\n99\n100\n101\n101\n250\n"
RTT = npz(rtt_ms=np.array([[[0, 100], [0, 0]]], dtype=np.float32))
RTT_CS = npz(rtt_cs=np.array([[[0, 25], [100, 0]]], dtype=np.uint16))


GOOD: dict[str, tuple[Callable[[Path], object], bytes]] = {
    "links.gz": (read_mahimahi, gzip.compress(STAMPS)),
    "rates.tar.gz": (read_rate_archive, RATES),
    "ndt.json.gz": (read_down_bps, gzip.compress(NDT)),
    "rtt.npz": (read_rtt, RTT),
    "spot.csv": (read_spot_prices, SPOT),
    "phones.json": (read_cpu_scores, PHONES),
}

Put = Callable[..., Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    def write(data: bytes, name: str = "trace") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize(
    ("name", "data"), [("x.up", STAMPS), ("x.gz", gzip.compress(STAMPS, mtime=0))]
)
def test_mahimahi_counts_packets_exactly(put: Put, name: str, data: bytes) -> None:
    link = read_mahimahi(put(data, name))
    np.testing.assert_allclose(link.times_s, [0, 0.1, 0.2, 0.25])
    np.testing.assert_allclose(link.bits, np.array([0, 4, 6, 7]) * PACKET_BITS)


def test_a_rate_holds_from_the_line_before(put: Put) -> None:
    bus, odd = read_rate_archive(put(RATES))
    assert (bus.name, odd.name) == ("bus_1", "odd name")
    np.testing.assert_array_equal(bus.times_s, [0, 1, 1.5])
    np.testing.assert_array_equal(bus.bps, [4e6, 0])
    np.testing.assert_array_equal(odd.times_s, [0, 0.5, 2.5])
    np.testing.assert_array_equal(odd.bps, [1e6, 3e6])
    plain = read_rate_archive(put(packed({"x": b"0 1\n2 3\n"}, "w")))
    assert plain[0].mean_bps == 3e6
    (single,) = read_rate_archive(put(packed({"x": b"2 3\n"})))
    assert (single.period_s, single.mean_bps) == (2.0, 3e6)


def test_round_trip_times_are_seconds_and_missing_ones_nan(put: Put) -> None:
    planetlab, seattle = read_rtt(put(RTT)), read_rtt(put(RTT_CS))
    assert planetlab.dtype == seattle.dtype == np.float32
    np.testing.assert_allclose(planetlab, [[[0, 0.1], [np.nan, 0]]], rtol=1e-6)
    np.testing.assert_allclose(seattle, [[[0, 0.25], [1.0, 0]]], rtol=1e-6)


def test_tables(put: Put) -> None:
    assert read_down_bps(put(NDT)).tolist() == [10.5e6]
    assert read_cpu_scores(put(PHONES)).tolist() == [3744.0]
    found = [(times.tolist(), price.tolist()) for times, price in read_spot_prices(put(SPOT))]
    assert found == [([10, 70], [0.03, 0.42]), ([0], [0.05])], "one clock"


def test_links_are_an_archive_a_folder_or_one_file(put: Put, tmp_path: Path) -> None:
    assert len(read_links(put(RATES, "rates"))) == 2
    single = put(STAMPS, "a.up")
    put(gzip.compress(STAMPS), "b.gz")
    put(b"about these links", "README.md")
    (tmp_path / "rates").unlink()
    assert [link.name for link in read_links(tmp_path)] == ["a.up", "b.gz"]
    assert [link.name for link in read_links(single)] == ["a.up"]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("damage", ["cut off", "<html>"])
def test_a_file_that_cannot_be_read_is_one_line(
    put: Put, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, damage: str
) -> None:
    read, data = GOOD[name]
    monkeypatch.setenv("FEDAGENT_DATA", str(tmp_path))
    with pytest.raises(DatasetError, match="is not in FEDAGENT_DATA"):
        recorded(read, name)
    put(data[: len(data) // 2] if damage == "cut off" else damage.encode(), name)
    with pytest.raises(DatasetError, match="cannot be read") as caught:
        recorded(read, name)
    assert len(str(caught.value).splitlines()) == 1
