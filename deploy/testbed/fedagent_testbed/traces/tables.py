"""CSV and JSON tables: M-Lab speed tests, EC2 spot prices and AI Benchmark scores of phones."""

from datetime import datetime
from pathlib import Path

import numpy as np

from .files import DEFAULT, Limits, TraceError, csv_rows, json_list, number
from .records import MAX_RATE_BPS, AccessSpeeds, CpuScores, PriceTrace

_MBIT = 1e6
_PRICES = ("zone", "instance_type", "timestamp", "price_usd_per_hour", "on_demand_usd_per_hour")
_MAX_PRICE = 1e6


def read_ndt(path: Path, limits: Limits = DEFAULT) -> AccessSpeeds:
    """Return the tests of ``mlab_ndt_*.json``."""
    table: list[tuple[float, float]] = []
    for entry, record in enumerate(json_list(path, limits), 1):
        try:
            speeds = (record["dl_mbps"], record["ul_mbps"])  # type: ignore[index] # checked by the except
            down, up = (number(str(speed), MAX_RATE_BPS / _MBIT) for speed in speeds)
        except (TypeError, KeyError, ValueError) as error:
            raise TraceError(str(path), entry, "has no dl_mbps and ul_mbps") from error
        table.append((down, up))
    if not table:
        raise TraceError(str(path), None, "holds no test")
    down_bps, up_bps = np.array(table, dtype=np.float64).T * _MBIT
    return AccessSpeeds(name=path.name, down_bps=down_bps, up_bps=up_bps)


def read_spot_prices(path: Path, limits: Limits = DEFAULT) -> tuple[PriceTrace, ...]:
    """Return one trace a market of ``ec2_spot_*.csv``; all share one zero of time."""
    markets: dict[tuple[str, str, str], tuple[list[float], list[float]]] = {}
    for line, (zone, machine, when, price, normal) in csv_rows(path, _PRICES, limits):
        try:
            stamp = datetime.fromisoformat(when)
            usd = number(price, _MAX_PRICE)
            positive = usd > 0 and number(normal, _MAX_PRICE) > 0
        except ValueError as error:
            raise TraceError(str(path), line, "has no time or price") from error
        if not positive or stamp.tzinfo is None:
            raise TraceError(str(path), line, "has a price of 0, or a time without zone")
        times, prices = markets.setdefault((zone, machine, normal), ([], []))
        seconds = stamp.timestamp()
        if times and seconds <= times[-1]:
            raise TraceError(str(path), line, "is not after the last row of its market")
        times.append(seconds)
        prices.append(usd)
    if not markets:
        raise TraceError(str(path), None, "holds no price")
    zero = min(times[0] for times, _ in markets.values())
    return tuple(
        PriceTrace(
            zone=zone,
            machine=machine,
            times_s=np.array(times) - zero,
            price=np.array(prices),
            normal_price=float(normal),
        )
        for (zone, machine, normal), (times, prices) in markets.items()
    )


def read_cpu_scores(path: Path, limits: Limits = DEFAULT) -> CpuScores:
    """Return ``CPU_F_AI_Score`` of ``ai_benchmark_*.json``; the first of a repeated phone."""
    scores: dict[str, float] = {}
    for entry, record in enumerate(json_list(path, limits), 1):
        try:
            model = record["Model"].strip()  # type: ignore[index] # checked by the except
            score = number(str(record["CPU_F_AI_Score"]), 1e9)  # type: ignore[index] # the same
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise TraceError(str(path), entry, "has no Model and CPU_F_AI_Score") from error
        if score <= 0:
            raise TraceError(str(path), entry, "has a score of 0")
        scores.setdefault(model, score)
    if not scores:
        raise TraceError(str(path), None, "holds no phone")
    return CpuScores(models=tuple(scores), score=np.array(list(scores.values())))
