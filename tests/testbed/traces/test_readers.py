"""Readers: small files that the tests make, and one typed error for any others."""

import gzip
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedagent_testbed.traces import files
from fedagent_testbed.traces.files import Limits, TraceError
from fedagent_testbed.traces.readers import (
    PACKET_BITS,
    read_cpu_scores,
    read_down_bps,
    read_mahimahi,
    read_rate_archive,
    read_rtt,
    read_spot_prices,
)

Read = Callable[..., object]
GZIP = b"\x1f\x8b"

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


def archive_of(info: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info)
    return out.getvalue()


def npz(**arrays: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> bytes:
    out = io.BytesIO()
    np.savez_compressed(out, **arrays)  # type: ignore[arg-type] # numpy's stub has a bool keyword
    return out.getvalue()


RATES = packed({"bus_1": b"0.0\t2.5\n1.0\t4.0\n1.5\t0\n", "odd name": b"0.5 1\n\n2.5 3\n"})
STAMPS = b"0\n0\n99\n100\n101\n101\n250\n"
RTT = npz(rtt_ms=np.array([[[0, 100], [0, 0]]], dtype=np.float32))
RTT_CS = npz(rtt_cs=np.array([[[0, 25], [100, 0]]], dtype=np.uint16))


def one_rate(path: Path) -> object:
    """Read an archive whose only member is ``x``."""
    return read_rate_archive(path)


GOOD: dict[str, tuple[Read, bytes]] = {
    "mahimahi": (read_mahimahi, gzip.compress(STAMPS)),
    "archive": (read_rate_archive, RATES),
    "ndt": (read_down_bps, gzip.compress(NDT)),
    "planetlab": (read_rtt, RTT),
    "seattle": (read_rtt, RTT_CS),
    "spot": (read_spot_prices, gzip.compress(SPOT)),
    "phones": (read_cpu_scores, gzip.compress(PHONES)),
}


@pytest.fixture
def put(tmp_path: Path) -> Callable[[bytes], Path]:
    path = tmp_path / "trace"

    def write(data: bytes) -> Path:
        path.write_bytes(data)
        return path

    return write


Put = Callable[[bytes], Path]


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_mahimahi_counts_packets_exactly(put: Put, pack: Callable[[bytes], bytes]) -> None:
    link = read_mahimahi(put(pack(STAMPS)))
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


@pytest.mark.parametrize(
    ("read", "data", "line", "problem"),
    [
        (read_mahimahi, b"1\n2\nx\n", 3, "no time"),
        (read_mahimahi, b"1\n\n-2\n", 3, "no time"),
        (read_mahimahi, b"1\n5\n4\n", 3, "goes back"),
        (read_mahimahi, b"1\n1_0\n", 2, "no time"),
        (read_mahimahi, b"1\n99999999999\n", 2, "no time"),
        (read_mahimahi, b"0\n0\n", None, "no stamp"),
        (read_mahimahi, b"", None, "no stamp"),
        (one_rate, b"0 1\n1 2 3\n", 2, "Mbit/s"),
        (one_rate, b"0 1\n1 nan\n", 2, "Mbit/s"),
        (one_rate, b"0 1\n1 -1\n", 2, "Mbit/s"),
        (one_rate, b"0 1\n1 1e300\n", 2, "Mbit/s"),
        (one_rate, b"0 1\n1 1_0\n", 2, "Mbit/s"),
        (one_rate, b"0 1\n2 1\n2 1\n", 3, "not after"),
        (one_rate, b"2 1\n0 1\n", 2, "not after"),
        (one_rate, b"0 1\n", None, "no line after 0 s"),
        (one_rate, b"0 1\n1 0\n2 0\n", None, "never carries"),
        (one_rate, b"0 " + b"1" * 9000, 1, "longer than"),
        (read_spot_prices, b"a,b\n", 1, "no column zone"),
        (read_spot_prices, b"", 1, "no column"),
        (read_spot_prices, SPOT + b"x,1,1,1\n", 5, "4 columns, not 6"),
        (read_spot_prices, SPOT + b"a,c3,L,2015-09-01 00:00:00+00:00,,1\n", 5, "no time or price"),
        (read_spot_prices, SPOT + b"x,1,1,1,1,\xff\n", 5, "UTF-8"),
        (read_spot_prices, SPOT + b'"x"y,1,1,1,1,r\n', 5, "no CSV"),
        (read_spot_prices, SPOT.split(b"\n")[0], None, "no price"),
        (read_down_bps, b"[{}]", 1, "dl_mbps"),
        (read_down_bps, NDT[:-1] + b', {"dl_mbps": NaN, "ul_mbps": 1}]', 2, "dl_mbps"),
        (read_down_bps, NDT[:-1] + b", 7]", 2, "dl_mbps"),
        (read_down_bps, b'[\n{"a": \n', 3, "no JSON"),
        (read_down_bps, b"{}", None, "no list"),
        (read_down_bps, b"[]", None, "no test"),
        (read_down_bps, b"[" * 100_000, None, "no JSON"),
        (read_spot_prices, SPOT + b"a,c3,L,yesterday,1,1\n", 5, "no time or price"),
        (read_spot_prices, SPOT + b"a,c3,L,2015-09-01 00:00:00,1,1\n", 5, "without zone"),
        (read_spot_prices, SPOT + b"a,c3,L,2015-09-01 00:00:00+00:00,0,1\n", 5, "price of 0"),
        (read_spot_prices, SPOT + SPOT.splitlines()[-1], 5, "not after the last row"),
        (read_cpu_scores, PHONES[:-1] + b', {"Model": 3}]', 3, "no Model"),
        (read_cpu_scores, b'[{"Model": "A", "CPU_F_AI_Score": "0"}]', 1, "score of 0"),
    ],
)
def test_the_error_names_the_line(
    put: Put, read: Read, data: bytes, line: int | None, problem: str
) -> None:
    path = put(packed({"x": data}) if read is one_rate else data)
    with pytest.raises(TraceError, match=problem) as caught:
        read(path)
    member = ":x" if read is one_rate else ""
    assert (caught.value.file, caught.value.line) == (f"{path}{member}", line)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", GOOD)
def test_a_file_that_is_not_there(name: str, tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        GOOD[name][0](tmp_path / "none")
    with pytest.raises(TraceError, match="directory"):
        GOOD[name][0](tmp_path)


@pytest.mark.parametrize("name", ["mahimahi", "archive", "ndt", "spot", "phones"])
def test_a_file_cut_off_anywhere_is_an_error(put: Put, name: str) -> None:
    read, data = GOOD[name]
    for end in range(len(data)):
        with pytest.raises(TraceError):
            read(put(data[:end]))


def test_a_plain_tar_cut_off_anywhere_is_an_error(put: Put) -> None:
    data = packed({"a": b"1 1\n" * 1, "b": b"1 2\n", "c": b"1 3\n"}, "w")
    assert len(read_rate_archive(put(data[: 6 * 512 + 1024]))) == 3
    for end in range(0, 6 * 512 + 1024, 128):
        with pytest.raises(TraceError):
            read_rate_archive(put(data[:end]))


def test_a_header_that_is_damaged_in_the_middle_is_no_end(put: Put) -> None:
    data = bytearray(packed({"a": b"1 1\n", "b": b"1 2\n", "c": b"1 3\n"}, "w"))
    data[2 * 512 + 3] ^= 0xFF
    with pytest.raises(TraceError, match="after 'a'"):
        read_rate_archive(put(bytes(data)))


@pytest.mark.parametrize("name", GOOD)
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None
)
@given(data=st.data())
def test_damaged_bytes_give_a_record_or_a_typed_error(
    put: Put, name: str, data: st.DataObject
) -> None:
    read, good = GOOD[name]
    inside = good[:2] == GZIP and data.draw(st.booleans())
    bad = bytearray(gzip.decompress(good) if inside else good)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(bad) - 1))
        bad[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=3))
    try:
        read(put(bytes(bad)))
    except TraceError as error:
        assert error.problem


BOMB = gzip.compress(b"1\n" * 10**6)


@pytest.mark.parametrize(
    ("limits", "read", "data", "problem"),
    [
        (Limits(unpacked_bytes=1000), read_mahimahi, BOMB, "more than 1000 bytes"),
        (Limits(rows=10), read_mahimahi, BOMB, "line 11: .*limit of 10 lines"),
        (
            Limits(unpacked_bytes=5000),
            read_rate_archive,
            packed({"zeros": bytes(10**6)}),
            "more than 5000 bytes",
        ),
        (Limits(members=1), read_rate_archive, RATES, "more than 1 members"),
        (Limits(rows=3), read_rate_archive, RATES, "limit of 3 rows"),
        (Limits(rows=0), read_down_bps, NDT, "at most 0 entries"),
        (Limits(unpacked_bytes=100), read_rtt, RTT, "unpacks to more than 100"),
        (Limits(rows=3), read_rtt, RTT, "for shape"),
    ],
    ids=range(8),
)
def test_limits_hold(
    put: Put, monkeypatch: pytest.MonkeyPatch, limits: Limits, read: Read, data: bytes, problem: str
) -> None:
    monkeypatch.setattr(files, "LIMITS", limits)
    with pytest.raises(TraceError, match=problem):
        read(put(data))


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (tarfile.SYMTYPE, "no plain file"),
        (tarfile.LNKTYPE, "no plain file"),
        (tarfile.FIFOTYPE, "no plain file"),
        (tarfile.DIRTYPE, "holds no trace"),
    ],
)
def test_only_plain_files_are_read_from_an_archive(put: Put, kind: bytes, problem: str) -> None:
    info = tarfile.TarInfo("passwords")
    info.type, info.linkname = kind, "/etc/passwd"
    with pytest.raises(TraceError, match=problem):
        read_rate_archive(put(archive_of(info)))


def test_a_sparse_file_does_not_unpack_past_the_limit(put: Put) -> None:
    """A header that says: a terabyte, of which nothing is stored."""
    info = tarfile.TarInfo("hole")
    info.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": "0,0",
        "GNU.sparse.size": str(2**40),
    }
    with pytest.raises(TraceError, match="no plain file"):
        read_rate_archive(put(archive_of(info)))


def _npy(header: str, body: bytes = b"") -> bytes:
    text = header.encode().ljust(117) + b"\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little")
        archive.writestr("rtt_ms.npy", head + text + body)
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (npz(other=np.zeros((1, 2, 2))), "no array rtt_ms"),
        (npz(rtt_ms=np.zeros((2, 2), dtype=np.float32)), "no plain array"),
        (npz(rtt_ms=np.zeros((1, 2, 3), dtype=np.float32)), "not \\(time, n, n\\)"),
        (npz(rtt_ms=np.zeros((0, 2, 2), dtype=np.float32)), "not \\(time, n, n\\)"),
        (npz(rtt_ms=np.zeros((1, 2, 2), dtype=np.float64)), "is f8, not float32"),
        (npz(rtt_ms=np.full((1, 2, 2), -1, dtype=np.float32)), "negative"),
        (npz(rtt_ms=np.full((1, 2, 2), np.nan, dtype=np.float32)), "not finite"),
        (b"PK not a zip", "no npz"),
        (
            _npy("{'descr': '<f4', 'fortran_order': False, 'shape': (999999999, 999, 999), }"),
            "for shape",
        ),
        (
            _npy("{'descr': '|O', 'fortran_order': False, 'shape': (1, 1, 1), }", b"cos\nsystem"),
            "no plain array",
        ),
        (json.dumps([1]).encode(), "no npz"),
    ],
)
def test_only_plain_matrices_are_read(put: Put, data: bytes, problem: str) -> None:
    with pytest.raises(TraceError, match=problem):
        read_rtt(put(data))


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
