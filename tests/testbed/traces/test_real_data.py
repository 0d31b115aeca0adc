"""The real files, against the figures that their README gives."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedagent_testbed.traces.readers import (
    PACKET_BITS,
    read_cpu_scores,
    read_down_bps,
    read_mahimahi,
    read_rate_archive,
    read_rtt,
    read_spot_prices,
)

SHARED = os.environ.get("FEDAGENT_DATA", "")
FOLDER = Path(SHARED)

pytestmark = pytest.mark.skipif(not SHARED, reason="FEDAGENT_DATA names no data folder")


@pytest.mark.parametrize(
    ("file", "traces", "rows", "median_s", "means"),
    [
        ("hsdpa_norway_3g", 80, 16_475, 302, (0.57, 4.55)),
        ("fcc_broadband", 500, 162_368, 534, (0.49, 4.00)),
        ("oboe", 428, 20_972, 178, (0.34, 5.84)),
        ("puffer_2022-02-18", 435, 427_469, 429, (0.23, 3.94)),
    ],
)
def test_rate_archives(
    file: str, traces: int, rows: int, median_s: float, means: tuple[float, float]
) -> None:
    links = read_rate_archive(FOLDER / f"net/{file}.tar.gz")
    assert len(links) == traces
    starts_at_0 = 0 if file == "oboe" else traces
    assert sum(len(link.bps) for link in links) + starts_at_0 == rows
    assert np.median([link.period_s for link in links]) == pytest.approx(median_s, abs=1)
    mbit = [link.mean_bps / 1e6 for link in links]
    assert means[0] <= min(mbit) <= max(mbit) <= means[1]


@pytest.mark.parametrize(
    ("file", "packets", "mbit"),
    [
        ("ATT-LTE-driving-2016.down", 45_604, 4.56),
        ("TMobile-LTE-short.up", 155_381, 13.32),
        ("Verizon-EVDO-driving.down", 46_065, 0.52),
    ],
)
def test_mahimahi(file: str, packets: int, mbit: float) -> None:
    link = read_mahimahi(FOLDER / f"net/mahimahi/{file}.gz")
    assert link.bits[-1] == pytest.approx(packets * PACKET_BITS)
    assert link.mean_bps / 1e6 == pytest.approx(mbit, abs=0.005)


@pytest.mark.parametrize(
    ("file", "shape", "median_s"),
    [("planetlab_rtt", (6, 490, 490), 0.1355), ("seattle_rtt", (688, 99, 99), 0.22)],
)
def test_round_trip_times(file: str, shape: tuple[int, ...], median_s: float) -> None:
    matrix = read_rtt(FOLDER / f"net/{file}.npz")
    assert matrix.seconds.shape == shape
    assert np.nanmedian(matrix.seconds) == pytest.approx(median_s, abs=0.005)


def test_tables() -> None:
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
