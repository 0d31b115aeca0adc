"""Readers: small files that the tests make, and the real ones where they are."""

import gzip
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from fedagent_task.errors import DatasetError
from fedagent_testbed.traces.readers import (
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
    assert planetlab.seconds.dtype == seattle.seconds.dtype == np.float32
    np.testing.assert_allclose(planetlab.seconds, [[[0, 0.1], [np.nan, 0]]], rtol=1e-6)
    np.testing.assert_allclose(seattle.seconds, [[[0, 0.25], [1.0, 0]]], rtol=1e-6)


def test_tables(put: Put) -> None:
    assert read_down_bps(put(NDT)).tolist() == [10.5e6]
    assert read_cpu_scores(put(PHONES)).tolist() == [3744.0]
    a, b = read_spot_prices(put(SPOT))
    assert (a.times_s.tolist(), b.times_s.tolist()) == ([10, 70], [0]), "one clock"
    assert (a.price.tolist(), b.price.tolist()) == ([0.03, 0.42], [0.05])


def test_links_are_an_archive_a_folder_or_one_file(put: Put, tmp_path: Path) -> None:
    assert len(read_links(put(RATES, "rates"))) == 2
    single = put(STAMPS, "a.up")
    put(gzip.compress(STAMPS), "b.gz")
    put(b"about these links", "README.md")
    (tmp_path / "rates").unlink()
    assert [link.name for link in read_links(tmp_path)] == ["a.up", "b.gz"]
    assert [link.name for link in read_links(single)] == ["a.up"]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("damage", ["cut off", "", "<html>"])
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


SHARED = os.environ.get("FEDAGENT_DATA", "")
FOLDER = Path(SHARED)
real = pytest.mark.skipif(not SHARED, reason="FEDAGENT_DATA names no data folder")
"""The files, against the figures that their README gives."""


@real
@pytest.mark.parametrize(
    ("file", "traces", "rows", "median_s", "means"),
    [
        ("hsdpa_norway_3g", 80, 16_475, 302, (0.57, 4.55)),
        ("fcc_broadband", 500, 162_368, 534, (0.49, 4.00)),
        ("oboe", 428, 20_972, 178, (0.34, 5.84)),
        ("puffer_2022-02-18", 435, 427_469, 429, (0.23, 3.94)),
    ],
)
def test_the_real_archives(
    file: str, traces: int, rows: int, median_s: float, means: tuple[float, float]
) -> None:
    links = read_rate_archive(FOLDER / f"net/{file}.tar.gz")
    assert len(links) == traces
    starts_at_0 = 0 if file == "oboe" else traces
    assert sum(len(link.bps) for link in links) + starts_at_0 == rows
    assert np.median([link.period_s for link in links]) == pytest.approx(median_s, abs=1)
    mbit = [link.mean_bps / 1e6 for link in links]
    assert means[0] <= min(mbit) <= max(mbit) <= means[1]


@real
@pytest.mark.parametrize(
    ("file", "packets", "mbit"),
    [
        ("ATT-LTE-driving-2016.down", 45_604, 4.56),
        ("TMobile-LTE-short.up", 155_381, 13.32),
        ("Verizon-EVDO-driving.down", 46_065, 0.52),
    ],
)
def test_the_real_mahimahi(file: str, packets: int, mbit: float) -> None:
    link = read_mahimahi(FOLDER / f"net/mahimahi/{file}.gz")
    assert link.bits[-1] == pytest.approx(packets * PACKET_BITS)
    assert link.mean_bps / 1e6 == pytest.approx(mbit, abs=0.005)


@real
@pytest.mark.parametrize(
    ("file", "shape", "median_s", "within_s"),
    [
        ("planetlab_rtt", (6, 490, 490), 0.1355, 0.001),
        ("seattle_rtt", (688, 99, 99), 0.22, 0.005),
    ],
)
def test_the_real_round_trip_times(
    file: str, shape: tuple[int, ...], median_s: float, within_s: float
) -> None:
    matrix = read_rtt(FOLDER / f"net/{file}.npz")
    assert matrix.seconds.shape == shape
    assert np.nanmedian(matrix.seconds) == pytest.approx(median_s, abs=within_s)


@real
def test_a_real_time_is_read_from_its_place_in_its_unit() -> None:
    seattle = FOLDER / "net/seattle_rtt.npz"
    with np.load(seattle, allow_pickle=False) as arrays:
        raw = arrays["rtt_cs"][5, 3, 17]
    assert read_rtt(seattle).between(5, 3, 17) == pytest.approx(raw / 100)


@real
def test_the_real_tables() -> None:
    speeds = read_down_bps(FOLDER / "net/mlab_ndt_na_2022-06.json.gz")
    assert len(speeds) == 10_000
    assert np.median(speeds) == pytest.approx(47.6e6, abs=1e5)
    markets = read_spot_prices(FOLDER / "price/ec2_spot_us-east-1_2015.csv.gz")
    prices = np.concatenate([market.price for market in markets])
    assert (len(markets), len(prices)) == (15, 274_099)
    assert (prices.min(), prices.max()) == (0.0081, 10.5)
    assert min(market.times_s[0] for market in markets) == 0
    scores = read_cpu_scores(FOLDER / "device/ai_benchmark_2020.json.gz")
    assert (len(scores), scores.min(), scores.max()) == (307, 105, 4310)
