"""Measured links, prices and devices, for worlds that are not made up.

One reader a format of file; each gives a frozen record in SI units, or `TraceError`
with the file and line at fault. Everything is streamed within `Limits`, nothing is
unpacked to disk, and nothing in a file is executed.

========================================  =====================  ======================
files                                     reader                 record
========================================  =====================  ======================
``*.down.gz``, ``*.up.gz`` of mahimahi    `read_mahimahi`        `RateTrace`
``hsdpa_*``, ``fcc_*``, ``oboe``,         `read_rate_archive`    `RateTrace`, each
``puffer_*`` (tar.gz)
``mlab_ndt_*.json``                       `read_ndt`             `AccessSpeeds`
``planetlab_rtt.npz``                     `read_planetlab`       `RttMatrix`
``seattle_rtt.npz``                       `read_seattle`         `RttMatrix`
``ec2_spot_*.csv``                        `read_spot_prices`     `PriceTrace`, a market
``ai_benchmark_*.json``                   `read_cpu_scores`      `CpuScores`
========================================  =====================  ======================
"""

from .files import Limits, TraceError
from .rates import read_mahimahi, read_rate_archive
from .records import AccessSpeeds, CpuScores, PriceTrace, RateTrace, RttMatrix
from .rtt import read_planetlab, read_seattle
from .tables import read_cpu_scores, read_ndt, read_spot_prices

__all__ = [
    "AccessSpeeds",
    "CpuScores",
    "Limits",
    "PriceTrace",
    "RateTrace",
    "RttMatrix",
    "TraceError",
    "read_cpu_scores",
    "read_mahimahi",
    "read_ndt",
    "read_planetlab",
    "read_rate_archive",
    "read_seattle",
    "read_spot_prices",
]
