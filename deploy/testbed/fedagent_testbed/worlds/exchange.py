"""Exchange times as RBCS-F simulates them (ALGORITHMS section 4, the paper's 6.1).

One edge, four classes of clients. tau = tau_b / mu + tau_s s + M / (B eta) + noise,
the noise uniform within plus or minus the expectation; mu, B and the availability are
drawn anew for every client in every round.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies import Feedback, Purpose, RoundView, Truth, round_rng
from fedagent_coordinator.policies.base import BoolArray, FloatArray, IntArray
from fedagent_task.spec import MICRO
from fedagent_testbed.recipe import Exchange, TestbedRecipe

from .base import arrived


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    """One round of the world, columns over N clients.

    Attributes:
        mu: float64[N], available CPU ratio.
        bandwidth_hz: float64[N].
        available: bool[N].
        expected_s: float64[N], exchange time given all that is known before.
        tau_s: float64[N], exchange time as it turns out.
    """

    mu: FloatArray
    bandwidth_hz: FloatArray
    available: BoolArray
    expected_s: FloatArray
    tau_s: FloatArray


class LinearExchange:
    """The reference world of RBCS-F; it remembers who trained in the last round.

    Every client costs a credit, so that a budget of K credits admits K clients.

    Two worlds of one seed differ by who trained only. `credits_` are the budget of a round;
    None admits all. Updates later than the deadline do not count.
    """

    def __init__(
        self,
        *,
        seed: int,
        setting: Exchange = Exchange(),  # noqa: B008 - frozen
        per_class: int = 10,
        credits_: float | None = None,
        deadline_s: float = math.inf,
    ) -> None:
        self._seed, self._setting, self._deadline_s = seed, setting, deadline_s
        self._work_s = np.repeat(np.asarray(setting.work_s, dtype=np.float64), per_class)
        snr = np.repeat(np.asarray(setting.snr, dtype=np.float64), per_class)
        self._efficiency = np.log2(1 + snr)
        self.clients = len(self._work_s)
        self._credits = self.clients if credits_ is None else credits_
        self._draw: Draw | None = None
        self._warm = np.zeros(self.clients, dtype=np.bool_)

    @classmethod
    def of(cls, recipe: TestbedRecipe, seed: int) -> "LinearExchange":
        """Return the world of a recipe's `clients`, `exchange` and `budget`."""
        setting = recipe.exchange
        return cls(
            seed=seed,
            setting=setting,
            per_class=recipe.clients // len(setting.work_s),
            credits_=recipe.budget.per_edge,
        )

    def draw(self, round_: int) -> Draw:
        """Return the world in this round; the same whenever it is asked for."""
        setting, rng = self._setting, round_rng(self._seed, round_, Purpose.ENVIRONMENT)
        mu = rng.uniform(0.5, 2.0, self.clients)
        bandwidth_hz = rng.uniform(2e6, 4e6, self.clients)
        available = rng.random(self.clients) < setting.availability
        send_s = setting.model_mbit * 1e6 / (bandwidth_hz * self._efficiency)
        expected_s = self._work_s / mu + setting.cold_s * ~self._warm + send_s
        return Draw(
            mu=mu,
            bandwidth_hz=bandwidth_hz,
            available=available,
            expected_s=expected_s,
            tau_s=expected_s * rng.uniform(0.0, 2.0, self.clients),
        )

    def view(self, round_: int) -> RoundView:
        """Return what a policy sees: one pair per client, and the truth for oracles."""
        draw = self._draw = self.draw(round_)
        pairs = np.arange(self.clients, dtype=np.int32)
        chance = np.minimum(self._deadline_s / (2 * draw.expected_s), 1.0)
        return RoundView(
            round=round_,
            pair_client=pairs,
            pair_edge=np.zeros(self.clients, dtype=np.int32),
            pair_features=np.column_stack((draw.mu, draw.bandwidth_hz)).astype(np.float32),
            feature_names=("compute", "bandwidth_hz"),
            client_price=np.full(self.clients, MICRO, dtype=np.int64),
            client_available=draw.available,
            edge_budget=np.array([round(MICRO * self._credits)], np.int64),
            truth=Truth(
                arrives=draw.tau_s <= self._deadline_s, chance=chance, tau_s=draw.expected_s
            ),
        )

    def play(self, view: RoundView, pairs: IntArray) -> Feedback:
        """Let these pairs train and remember them as warm; the one edge waits for all."""
        assert self._draw is not None, "a round is seen before it is played"
        clients = view.pair_client[pairs]
        self._warm = np.zeros(self.clients, dtype=np.bool_)
        self._warm[clients] = True
        tau_s = self._draw.tau_s[clients]
        return arrived(view, pairs, tau_s <= self._deadline_s, tau_s)
