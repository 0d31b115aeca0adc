"""Exchange times as RBCS-F simulates them (ALGORITHMS section 4, the paper's 6.1).

One edge, four classes of clients. tau = tau_b / mu + tau_s s + M / (B eta) + noise,
the noise uniform within plus or minus the expectation; mu, B and the availability are
drawn anew for every client in every round.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_task.spec import MICRO

FEATURES = ("compute", "bandwidth_hz")
PRICE = MICRO
"""A credit for every client, so that a budget of K credits admits K clients."""


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One round of the world, columns over N clients.

    Attributes:
        round: From 1.
        mu: float64[N], available CPU ratio.
        bandwidth_hz: float64[N].
        available: bool[N].
        expected_s: float64[N], exchange time given all that is known before.
        tau_s: float64[N], exchange time as it turns out.
    """

    round: int
    mu: FloatArray
    bandwidth_hz: FloatArray
    available: BoolArray
    expected_s: FloatArray
    tau_s: FloatArray


class LinearExchange:
    """The reference world of RBCS-F; it remembers who trained in the last round.

    Args:
        seed: Of all draws; two worlds of one seed differ by who trained only.
        per_class: Clients in each class.
        work_s: tau_b of each class, seconds of training on one whole CPU.
        cold_s: tau_s, seconds more for those who did not train in the last round.
        snr: Signal-to-noise ratio of each class; eta = log2(1 + snr).
        model_bits: M.
        availability: Chance of each client to be there, in each round.
        deadline_s: Later updates do not count.
    """

    def __init__(
        self,
        *,
        seed: int,
        per_class: int = 10,
        work_s: Sequence[float] = (1, 2, 3, 4),
        cold_s: float = 1.0,
        snr: Sequence[float] = (1000, 100, 10, 1),
        model_bits: float = 20e6,
        availability: float = 0.8,
        deadline_s: float = math.inf,
    ) -> None:
        self._seed = seed
        self._work_s = np.repeat(np.asarray(work_s, dtype=np.float64), per_class)
        self._efficiency = np.log2(1 + np.repeat(np.asarray(snr, dtype=np.float64), per_class))
        self._cold_s, self._model_bits = cold_s, model_bits
        self._availability, self._deadline_s = availability, deadline_s
        self.clients = len(self._work_s)
        self._warm = np.zeros(self.clients, dtype=np.bool_)

    def draw(self, round_: int) -> Draw:
        """Return the world in this round; the same whenever it is asked for."""
        rng = round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        mu = rng.uniform(0.5, 2.0, self.clients)
        bandwidth_hz = rng.uniform(2e6, 4e6, self.clients)
        available = rng.random(self.clients) < self._availability
        send_s = self._model_bits / (bandwidth_hz * self._efficiency)
        expected_s = self._work_s / mu + self._cold_s * ~self._warm + send_s
        return Draw(
            round=round_,
            mu=mu,
            bandwidth_hz=bandwidth_hz,
            available=available,
            expected_s=expected_s,
            tau_s=expected_s * rng.uniform(0.0, 2.0, self.clients),
        )

    def view(self, draw: Draw, *, room: float | None = None) -> RoundView:
        """Return what a policy sees: one pair per client, and the truth for oracles.

        Args:
            draw: The round.
            room: Credits of the budget, a client each; None admits all.
        """
        pairs = np.arange(self.clients, dtype=np.int32)
        chance = np.minimum(self._deadline_s / (2 * draw.expected_s), 1.0)
        return RoundView(
            round=draw.round,
            pair_client=pairs,
            pair_edge=np.zeros(self.clients, dtype=np.int32),
            pair_features=np.column_stack((draw.mu, draw.bandwidth_hz)).astype(np.float32),
            feature_names=FEATURES,
            client_price=np.full(self.clients, PRICE, dtype=np.int64),
            client_available=draw.available,
            edge_budget=np.array(
                [round(PRICE * (self.clients if room is None else room))], np.int64
            ),
            truth=Truth(
                arrives=draw.tau_s <= self._deadline_s, chance=chance, tau_s=draw.expected_s
            ),
        )

    def play(self, draw: Draw, view: RoundView, pairs: IntArray) -> Feedback:
        """Let these pairs train, remember them as warm, and say how it went."""
        self._warm = np.zeros(self.clients, dtype=np.bool_)
        self._warm[view.pair_client[pairs]] = True
        tau_s = draw.tau_s[view.pair_client[pairs]]
        in_time = tau_s <= self._deadline_s
        unknown = np.full(len(pairs), np.nan)
        nothing = np.zeros(len(pairs), dtype=np.int64)
        return Feedback(
            view=view,
            pairs=pairs,
            X=in_time,
            used=in_time,
            tau_s=tau_s,
            dt_s=unknown,
            lc_s=unknown,
            ut_s=unknown,
            censored=np.zeros(len(pairs), dtype=np.bool_),
            void=~in_time,
            arrivals=nothing,
            num_samples=nothing,
            seconds_per_iteration=unknown,
        )
