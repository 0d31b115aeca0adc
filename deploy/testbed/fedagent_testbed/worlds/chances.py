"""Clients whose updates arrive by a chance that no link explains."""

import numpy as np

from fedagent_coordinator.policies import Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import FloatArray

from .base import Times
from .linked import LinkedWorld

_FIRST = 0.2
"""Share of the deadline before which no update comes."""
_STAGES = (0.1, 0.7, 0.2)
"""Shares of the exchange time: download, computation, upload."""


class ChanceWorld(LinkedWorld):
    """An update in time by a chance of the client's own, or by its compute alone.

    With ``own`` the features are noise. With ``compute`` only the middle of the range succeeds: a
    device with little is too slow, one with much is throttled for its heat. An update in time
    takes a fifth of the deadline to all of it, evenly, any other one to three times the deadline.
    """

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        recipe, people = self._recipe, self._people
        people.begin(round_)
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        pairs, deadline = len(people.pair_place), recipe.rounds.deadline_s
        compute = rng.uniform(*recipe.world.work.compute, len(people.alive))
        own = self._own(compute)[people.pair_place]
        extra = people.extra_s()[people.pair_place]
        comes, when = rng.random(pairs) < own, rng.random(pairs)
        tau = deadline * np.where(comes, _FIRST + (1.0 - _FIRST) * when, 1.0 + 2.0 * when)
        dt, lc, ut = (share * tau for share in _STAGES)
        times = Times(dt, lc + extra, ut)
        features = {
            "compute": compute[people.pair_place],
            "download_bps": 10.0 ** rng.uniform(4.0, 7.0, pairs),
        }
        # Who takes longer by a start is in time only if it comes early enough.
        early = np.clip(1.0 - extra / deadline / (1.0 - _FIRST), 0.0, 1.0)
        truth = Truth(
            arrives=times.tau_s <= deadline,
            chance=own * early,
            tau_s=deadline * (2.0 - own * (1.5 - _FIRST / 2.0)) + extra,
        )
        return self._shown(round_, features, compute, times, truth)

    def _own(self, compute: FloatArray) -> FloatArray:
        """Return float64[n], the chance of each client's update."""
        chances, people = self._recipe.world.chances, self._people
        if chances.by == "own":
            low, high = chances.own
            drawn = low + (high - low) * people.trait("factor")
            return np.where(people.some("sure", chances.sure), 1.0, drawn)
        low, high = self._recipe.world.work.compute
        middle, width = (low + high) / 2.0, max(chances.width * (high - low), 1e-9)
        bump = np.exp(-0.5 * ((compute - middle) / width) ** 2)
        return np.asarray(chances.best * bump, dtype=np.float64)
