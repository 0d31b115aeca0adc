"""A small folder of data in the files' own formats, so that nothing real is needed."""

import gzip
import io
import json
import tarfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np

from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import load_recipe

SMALL = (
    "world.clients=4",
    "world.edges=5",
    "rounds.count=12",
    "world.streaming.dataset=digits",
    "world.streaming.steps=5",
    "world.streaming.budget=6.0",
    "world.streaming.evaluate_every=3",
    "learner.name=strsaga",
    "learner.batch=1",
)


def small(*sets: str) -> Study:
    return load_recipe("bas-a9a", (*SMALL, *sets))


def write(root: Path) -> None:
    """Write links, round-trip times, prices, phones and two weather stations."""
    rng = np.random.default_rng(0)
    for name in ("net", "price", "device", "sensor"):
        (root / name).mkdir()
    tests = [{"dl_mbps": float(v), "ul_mbps": 1.0} for v in rng.uniform(1, 60, 40)]
    _zipped(root / "net/mlab_ndt_na_2022-06.json.gz", json.dumps(tests))
    with tarfile.open(root / "net/oboe.tar.gz", "w:gz") as archive:
        for number in range(6):
            lines = [f"{5 * k} {rate:.3f}" for k, rate in enumerate(rng.uniform(0.5, 5, 20))]
            body = "\n".join(lines).encode()
            member = tarfile.TarInfo(f"trace_{number}")
            member.size = len(body)
            archive.addfile(member, io.BytesIO(body))
    rtt = rng.integers(5, 60, (8, 12, 12)).astype(np.uint16)
    rtt[:, np.arange(12), np.arange(12)] = 0
    rtt[2, 0, 1:] = 0
    np.savez_compressed(root / "net/seattle_rtt.npz", rtt_cs=rtt)
    _zipped(root / "price/ec2_spot_us-east-1_2015.csv.gz", _prices(rng))
    phones = [{"Model": f"phone {k}", "CPU_F_AI_Score": str(100 + 50 * k)} for k in range(20)]
    _zipped(root / "device/ai_benchmark_2020.json.gz", json.dumps(phones))
    np.savez_compressed(
        root / "sensor/beijing_weather_hourly.npz",
        values=weather(rng),
        columns=np.array(["TEMP_C", "PRES_hPa", "DEWP_C"]),
    )


def weather(rng: np.random.Generator) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    """Return 2 stations x 1200 hours x 3: daily waves, which lags foretell; some hours missing."""
    hours = np.arange(1200)
    warm = 10 + 8 * np.sin(2 * np.pi * hours / 24) + 0.2 * rng.standard_normal((2, 1200))
    values = np.stack([warm, np.full((2, 1200), 1010.0), warm - 5], axis=2)
    values[0, 100:110] = np.nan
    return values.astype(np.float32)


def _prices(rng: np.random.Generator) -> str:
    rows = ["zone,instance_type,timestamp,price_usd_per_hour,on_demand_usd_per_hour"]
    start = datetime(2015, 1, 1, tzinfo=UTC)
    for zone in ("a", "b", "c"):
        at = start
        for price in rng.uniform(0.02, 0.5, 50):
            at += timedelta(minutes=float(rng.uniform(10, 300)))
            rows.append(f"{zone},small,{at.isoformat()},{price:.4f},0.1")
    return "\n".join(rows) + "\n"


def _zipped(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))
