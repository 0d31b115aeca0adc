"""What releases with Gaussian noise cost: OpenDP's accounting, in zero-concentrated privacy.

n releases of noise z * sensitivity are one of z / sqrt(n): rho adds up (Bun & Steinke, TCC 2016).
No amplification by sampling is counted: who trains is chosen by a policy, not by chance.
"""

import math
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from fedagent_protocol.extras import how_to_add
from fedagent_task.errors import NotInstalledError
from fedagent_task.recipe.spec import PrivacySpec


def opendp() -> Any:
    """Return the library, which takes half a second; or raise `NotInstalledError`."""
    if find_spec("opendp") is None:
        what = "noise is made and accounted for by opendp, which is missing"
        raise NotInstalledError(what, how_to_add("privacy"))
    import opendp.prelude as dp  # noqa: PLC0415 - half a second, only where noise is wanted

    dp.enable_features("contrib")
    return dp


@lru_cache(maxsize=256)
def epsilon_of(noise: float, delta: float, releases: int) -> float:
    """Return epsilon of so many releases whose noise is `noise` sensitivities long.

    Raises:
        NotInstalledError: The library is not installed.
    """
    if releases <= 0:
        return 0.0
    dp = opendp()
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)
    once = dp.m.make_gaussian(*space, scale=noise / math.sqrt(releases))
    return float(dp.c.make_zCDP_to_approxDP(once).map(1.0).epsilon(delta))


def noise_multiplier(epsilon: float, delta: float, releases: int) -> float:
    """Return the least noise, in sensitivities, with which all releases cost at most epsilon.

    Raises:
        NotInstalledError: The library is not installed.
    """
    return _for_one(epsilon, delta) * math.sqrt(releases)


@lru_cache(maxsize=16)
def _for_one(epsilon: float, delta: float) -> float:
    dp = opendp()
    space = dp.atom_domain(T=float, nan=False), dp.absolute_distance(T=float)

    def made(scale: float) -> Any:
        return dp.c.make_fix_delta(
            dp.c.make_zCDP_to_approxDP(dp.m.make_gaussian(*space, scale=scale)), delta
        )

    found = dp.binary_search_param(made, d_in=1.0, d_out=(epsilon, delta))
    return float(found) * (1 + 1e-12)  # so that no rounding of the root is over epsilon


def deviation_of(spec: PrivacySpec) -> float:
    """Return the standard deviation of the noise on one update, or on one edge's sum.

    Of two updates of norm `clip` one may be the other's opposite; in a sum one may be missing.
    """
    sensitivity = 2 * spec.clip if spec.mode == "local" else spec.clip
    return sensitivity * noise_multiplier(spec.epsilon, spec.delta, spec.releases)


def epsilon_spent(spec: PrivacySpec, releases: int) -> float:
    """Return what so many updates of a device have cost."""
    noise = noise_multiplier(spec.epsilon, spec.delta, spec.releases)
    return epsilon_of(noise, spec.delta, releases)
