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
one text file of such an archive          `read_rate_file`       `RateTrace`
``speedtest_5g_*.csv``                    `read_speedtest`       `AccessSpeeds`
``mlab_ndt_*.json``                       `read_ndt`             `AccessSpeeds`
``planetlab_rtt.npz``                     `read_planetlab`       `RttMatrix`
``seattle_rtt.npz``                       `read_seattle`         `RttMatrix`
``ec2_spot_*.csv``                        `read_spot_prices`     `PriceTrace`, a market
``ai_benchmark_*.json``                   `read_cpu_scores`      `CpuScores`
``flash_user_speed.json``                 `read_user_links`      `UserLinks`
========================================  =====================  ======================
"""

from .devices import read_cpu_scores, read_user_links
from .errors import TraceError
from .files import Limits
from .mahimahi import read_mahimahi
from .prices import read_spot_prices
from .rates import read_rate_archive, read_rate_file
from .records import AccessSpeeds, CpuScores, PriceTrace, RateTrace, RttMatrix, UserLinks
from .rtt import read_planetlab, read_seattle
from .speeds import read_ndt, read_speedtest

__all__ = [
    "AccessSpeeds",
    "CpuScores",
    "Limits",
    "PriceTrace",
    "RateTrace",
    "RttMatrix",
    "TraceError",
    "UserLinks",
    "read_cpu_scores",
    "read_mahimahi",
    "read_ndt",
    "read_planetlab",
    "read_rate_archive",
    "read_rate_file",
    "read_seattle",
    "read_speedtest",
    "read_spot_prices",
    "read_user_links",
]
