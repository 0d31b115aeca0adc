"""The fleet of the demos with opinions, its recipe and policy, without processes: it steers."""

from dataclasses import dataclass, field

import numpy as np

from fedagent_cli import places
from fedagent_cli.demo.plan import EVERY_DIGIT, make_evaluated_plan
from fedagent_coordinator import policies
from fedagent_coordinator.policies.base import round_rng
from fedagent_task.models import create
from fedagent_task.models.features import scaled
from fedagent_task.readers import Dataset, load
from fedagent_task.recipe.text import parse_recipe
from tests.fakes.rounds import ended, town

RECIPE = parse_recipe(places.find_recipe("fa-digits").read_text())
AGENTS = 10


@dataclass
class Fleet:
    """Ten devices that train the recipe's model and evaluate it by digits of all kinds."""

    seed: int
    chosen: np.ndarray = field(default_factory=lambda: np.zeros(AGENTS, np.int64))

    def __post_init__(self) -> None:
        data = load("digits-train")
        assert isinstance(data, Dataset)
        self.x = scaled(data.x, RECIPE.data)
        self.y = np.asarray(data.y, np.int64)
        rng = np.random.default_rng(self.seed)
        size = int(str(RECIPE.policy.params["clients_per_round"]))
        self.plan = make_evaluated_plan(agents=AGENTS, edges=2, best=size)
        self.own = [np.flatnonzero(np.isin(self.y, a.labels)) for a in self.plan.agents]
        self.held = [rng.choice(len(self.y), 200, replace=False) for _ in self.plan.agents]
        self.model = create(RECIPE.model)
        self.weights = self.model.init(self.seed)
        self.policy = policies.create(RECIPE.policy.name, **RECIPE.policy.params)

    def opinions(self) -> np.ndarray:
        right = [
            np.mean(self.model.forward(self.weights, self.x[held]).argmax(axis=1) == self.y[held])
            for held in self.held
        ]
        return np.array(right, np.float64)

    def train(self, clients: list[int]) -> None:
        spec, made = RECIPE.learner, []
        for client in clients:
            weights = {name: tensor.copy() for name, tensor in self.weights.items()}
            mine = self.own[client][: spec.buffer]
            for _ in range(spec.passes):
                slopes = self.model.loss_and_gradient(weights, self.x[mine], self.y[mine])[1]
                for name in weights:
                    weights[name] -= (spec.rate * slopes[name]).astype(np.float32)
            made.append(weights)
        if made:
            self.weights = {
                name: np.mean([one[name] for one in made], axis=0, dtype=np.float32)
                for name in self.weights
            }

    def play(self, rounds: int) -> None:
        opinions = self.opinions()
        places_km = [agent.position_km or (0.0, 0.0) for agent in self.plan.agents]
        for t in range(1, rounds + 1):
            view = town(
                t, AGENTS, price=1, budget=AGENTS, opinions=opinions.tolist(), places=places_km
            )
            pairs = self.policy.select(view, round_rng(self.seed, t, 0)).pairs
            self.chosen[pairs] += 1
            self.train(pairs.tolist())
            opinions = self.opinions()
            self.policy.learn(ended(view, pairs.tolist(), opinions=opinions.tolist()))


def test_devices_with_all_digits_train_more_often() -> None:
    fleet = Fleet(seed=0)
    fleet.play(30)
    every = np.array([agent.kind == EVERY_DIGIT for agent in fleet.plan.agents])
    assert fleet.chosen[every].mean() > 1.5 * fleet.chosen[~every].mean()
    assert fleet.opinions().mean() > 0.9
