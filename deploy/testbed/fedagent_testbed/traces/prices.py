"""EC2 spot prices of 2015: what renting an edge costs over time."""

from datetime import datetime
from pathlib import Path

import numpy as np

from .errors import TraceError
from .files import DEFAULT, Limits, number
from .records import PriceTrace
from .tables import csv_rows

_COLUMNS = (
    "zone",
    "instance_type",
    "timestamp",
    "price_usd_per_hour",
    "on_demand_usd_per_hour",
)
_MAX_PRICE = 1e6

_Market = tuple[str, str, str]


def read_spot_prices(path: Path, limits: Limits = DEFAULT) -> tuple[PriceTrace, ...]:
    """Return one trace a market, in the file's order; all share one zero of time.

    Raises:
        TraceError: The file or a line in it cannot be used.
    """
    markets: dict[_Market, tuple[list[float], list[float]]] = {}
    for line, (zone, machine, when, price, normal) in csv_rows(path, _COLUMNS, limits):
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
