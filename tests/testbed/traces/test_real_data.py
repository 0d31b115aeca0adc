"""The real files, against the figures that their README gives."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedagent_testbed.traces import (
    RateTrace,
    read_cpu_scores,
    read_mahimahi,
    read_ndt,
    read_planetlab,
    read_rate_archive,
    read_seattle,
    read_spot_prices,
)
from fedagent_testbed.traces.rates import PACKET_BITS

from .test_records import integral

VARIABLE = "FEDAGENT_DATA"
SHARED = os.environ.get(VARIABLE, "")
FOLDER = Path(SHARED)

pytestmark = pytest.mark.skipif(not SHARED, reason=f"{VARIABLE} names no data folder")


def _inverts(link: RateTrace) -> None:
    starts = np.random.default_rng(0).uniform(0, 3 * link.period_s, 5)
    bits = np.random.default_rng(1).uniform(0, 2 * link.bits[-1], 5)
    seconds = link.seconds_for(bits, starts)
    both = zip(starts.tolist(), seconds.tolist(), strict=True)
    carried = [integral(link, *one) for one in both]
    np.testing.assert_allclose(carried, bits, atol=1e-6 * link.bits[-1])


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
    assert min(mbit) >= means[0]
    assert max(mbit) <= means[1]
    _inverts(links[0])


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
    _inverts(link)


def test_round_trip_times() -> None:
    planetlab = read_planetlab(FOLDER / "net/planetlab_rtt.npz")
    assert planetlab.seconds.shape == (6, 490, 490)
    assert np.nanmedian(planetlab.seconds) == pytest.approx(0.1355, abs=0.001)
    seattle = read_seattle(FOLDER / "net/seattle_rtt.npz")
    assert seattle.seconds.shape == (688, 99, 99)
    assert np.nanmedian(seattle.seconds) == pytest.approx(0.22, abs=0.005)
    with np.load(FOLDER / "net/seattle_rtt.npz", allow_pickle=False) as arrays:
        raw = arrays["rtt_cs"][5, 3, 17]
    assert float(seattle.between(5, 3, 17)) == pytest.approx(raw / 100)


def test_access_speeds() -> None:
    ndt = read_ndt(FOLDER / "net/mlab_ndt_na_2022-06.json.gz")
    assert len(ndt.down_bps) == 10_000
    assert np.median(ndt.down_bps) == pytest.approx(47.6e6, abs=1e5)
    assert np.median(ndt.up_bps) == pytest.approx(9.6e6, abs=1e5)


def test_spot_prices() -> None:
    markets = read_spot_prices(FOLDER / "price/ec2_spot_us-east-1_2015.csv.gz")
    assert len(markets) == 15
    assert sum(len(market.price) for market in markets) == 274_099
    prices = np.concatenate([market.price for market in markets])
    assert (prices.min(), prices.max()) == (0.0081, 10.5)
    assert min(market.times_s[0] for market in markets) == 0


def test_phones() -> None:
    scores = read_cpu_scores(FOLDER / "device/ai_benchmark_2020.json.gz")
    assert len(scores.models) == 307
    assert (scores.score.min(), scores.score.max()) == (105, 4310)
