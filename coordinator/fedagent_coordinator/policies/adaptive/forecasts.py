"""The forecast of `adaptive`: what the context promises, and what each device made of it.

The experts of the context (`context_experts`) are corrected by filters over types of devices
(`device_filters`); those of the `history` start from the base rate and heed no context.
All are averaged by their log-loss. Failures that many share are charged to the round or the edge
(`shared_failures`).
"""

from collections.abc import Iterator

import numpy as np

from fedagent_coordinator.policies.base import Ending, Feedback, FloatArray, IntArray, RoundView
from fedagent_coordinator.policies.state import ArrayState, floats

from .context_experts import CONTEXT, LOW, Context, ContextExperts, is_shares, mixed
from .device_filters import DeviceFilters, Found, chance_by_type
from .shared_failures import SharedFailures
from .upload_demand import Rows

_SLOW, _FAST = 0.003, 0.05
"""Chances per round that a device turns into another one."""
_FILTERS = {"device": _SLOW, "device_fast": _FAST, "history": _SLOW, "history_fast": _FAST}
"""The filters over devices, and how fast each lets them change."""
EXPERTS = ("context", *_FILTERS)
_BASE_KEEP = 0.98
"""What a round leaves of the successes and failures that make the base rate: 50 rounds count."""
_NOT_THE_LINK = np.isin(list(Ending), (Ending.DECLINED, Ending.REJECTED, Ending.GONE))
"""Whether an end, by its number, says nothing of what the context promises."""


class Forecasts(ArrayState):
    """Chances of success, and all that is learnt for them."""

    parts = ("_context", "_shared")
    _weights = floats(len(EXPERTS), start=1.0 / len(EXPERTS))
    _base = floats(2, start=np.array([1.2, 0.8]), least=0)  # fading successes and failures

    def __init__(self, memory: float, share: float) -> None:
        self._share = share
        self._context, self._shared = ContextExperts(memory, share), SharedFailures()
        self.devices = DeviceFilters(tuple(_FILTERS.values()))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of every expert."""
        values = (*self._context.mixture.tolist(), *self._weights.tolist())
        return {f"w_{n}": v for n, v in zip((*CONTEXT, *EXPERTS), values, strict=True)}

    def chance(self, view: RoundView, rows: Rows) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return forecasts, those without common causes, what contexts promise: float64[R] each."""
        context = self._context.read(view, rows)
        promised = self._context.mixture @ self._context.forecasts(context)
        found, by_type = self._asked(context, promised)
        chances: FloatArray = self._weights @ self._corrected(found, by_type, promised)
        shared = self._shared.factor(view.pair_edge[rows], len(view.edge_budget))
        return chances * shared, chances, promised

    def never(self, clients: IntArray, round_: int) -> FloatArray:
        """Return float64[R], the chance that each client never delivers."""
        weight = dict(zip(EXPERTS, self._weights.tolist(), strict=True))
        slow = (weight["device"] + weight["history"]) / (1.0 - weight["context"])
        by = self.devices.never(clients, round_)
        return np.asarray(slow * by[0] + (1.0 - slow) * by[1], dtype=np.float64)

    def forget(self, clients: IntArray, round_: int) -> None:
        """Take these clients as new ones."""
        self.devices.forget(clients, round_)

    def learn(self, feedback: Feedback) -> FloatArray:
        """Weigh the experts by what they had forecast, then teach them.

        Returns:
            float64[S], what the context alone had promised.
        """
        view, pairs, success = feedback.view, feedback.pairs, feedback.X
        self._context.settle_centre(view)
        context = self._context.read(view, pairs)
        promised = self._context.forecasts(context)
        average = np.asarray(self._context.mixture @ promised, dtype=np.float64)
        found, by_type = self._asked(context, average)
        forecasts = self._corrected(found, by_type, average)
        chances = self._weights @ forecasts
        edge, endings = view.pair_edge[pairs], feedback.endings
        silent = endings == Ending.EDGE
        quality = self._shared.learn(edge, chances, success, silent, len(view.edge_budget))
        if len(pairs):
            # How much of a failure was the pair's own, not the common cause's.
            own = np.where(success, 1.0, quality * (1 - chances) / (1 - quality * chances))
            after = self.devices.learn(found, by_type, success, quality)
            never = after[:, 0, 0]  # by the slow memory
            of_link = own * (1.0 - never) * ~_NOT_THE_LINK[endings]
            self._context.learn(context, promised, success, of_link)
            self._weights = mixed(self._weights, forecasts, success, own, self._share)
            self._base = _BASE_KEEP * self._base + [own @ success, own @ ~success]
            self._base = np.maximum(self._base, LOW)
        self._context.observe(feedback, context)
        return average

    def problems(self) -> Iterator[str]:
        """Refuse weights that are no shares."""
        if not is_shares(self._weights):
            yield "has weights that are no shares"

    def _asked(
        self, context: Context, promised: FloatArray
    ) -> tuple[Found, tuple[FloatArray, ...]]:
        """Return what is kept of these pairs' devices, and each filter's chances by type."""
        by_context = chance_by_type(promised)
        base = chance_by_type(self._base[:1] / self._base.sum())
        reported = context.reported
        return self.devices.find(reported.client, reported.view.round), (by_context, base)

    def _corrected(
        self, found: Found, by_type: tuple[FloatArray, ...], promised: FloatArray
    ) -> FloatArray:
        """Return float64[5, R], the forecasts of all experts, given what the context promises."""
        forecasts = np.empty((len(EXPERTS), len(promised)))
        forecasts[0] = promised
        self.devices.chance(found, by_type, out=forecasts[1:])
        return forecasts.clip(LOW, 1 - LOW, out=forecasts)
