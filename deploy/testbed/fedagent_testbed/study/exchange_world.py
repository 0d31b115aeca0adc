"""The linear exchange times of RBCS-F (`exchange.py`) as a world of studies."""

from dataclasses import replace

import numpy as np

from fedagent_coordinator.policies import Feedback, RoundView
from fedagent_coordinator.policies.base import IntArray
from fedagent_testbed.exchange import Draw, LinearExchange

from .spec import TestbedRecipe


class ExchangeWorld:
    """One edge that waits for everybody it ordered; every client costs one credit.

    Args:
        recipe: Its `clients`, `exchange` and `budget`.
        seed: Of all draws; who trained last changes who is warm, and nothing else.
    """

    def __init__(self, recipe: TestbedRecipe, seed: int) -> None:
        setting = recipe.exchange
        self._credits = recipe.budget.per_edge
        self._inner = LinearExchange(
            seed=seed,
            per_class=recipe.clients // len(setting.work_s),
            work_s=setting.work_s,
            cold_s=setting.cold_s,
            snr=setting.snr,
            model_bits=setting.model_mbit * 1e6,
            availability=setting.availability,
        )
        self._draw: Draw | None = None

    def view(self, round_: int) -> RoundView:
        """Draw a round."""
        self._draw = self._inner.draw(round_)
        return self._inner.view(self._draw, room=self._credits)

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Say how these pairs ended: all arrive, sooner or later."""
        assert self._draw is not None, "a round is seen before it is played"
        feedback = self._inner.play(self._draw, view, pairs)
        return replace(feedback, X=np.ones(len(pairs), dtype=np.bool_))
