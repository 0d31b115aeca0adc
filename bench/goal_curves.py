"""How a model grows by who trains it: what Fig. 5 of the GDA paper shows.

Loss within a slot by the number of clients, and the mean opinion slot after slot by their number
and by the set, where each slot starts from the same model and where it carries over.
"""

from dataclasses import dataclass

import numpy as np

from fedagent_coordinator.policies.base import FloatArray
from fedagent_testbed.learning.local_sgd import BatchedModel
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.study import load_recipe, make_world
from fedagent_testbed.study.play import one_blas_thread

ROUNDS, SLOTS, L = 30, 20, 15
NUMBERS = (1, 5, 10, 15, 20)
SETS: dict[str, tuple[int, ...]] = {
    "{16..20}": tuple(range(15, 20)),
    "five random": (),
    "{1..20}": tuple(range(20)),
    "{1..5}": tuple(range(5)),
}


@dataclass(frozen=True, slots=True)
class Curves:
    """A set of clients, or how many random ones train; a "seed" is a block of trials."""

    part: str
    label: str
    shared: tuple[str, ...]
    members: tuple[int, ...]
    size: int
    trials: int = 10
    most: int = 1

    def measure(self, block: int) -> dict[str, object]:
        """Return mean loss by round, and mean opinions by slot, over the block's trials."""
        seeds = range(block * self.trials, (block + 1) * self.trials)
        with one_blas_thread():
            found = [(self._within(seed), self._slots(seed)) for seed in seeds]
        loss, reset = (np.mean([one[at] for one, _ in found], axis=0) for at in (0, 1))
        return {
            "loss": _short(loss),
            "reset": _short(reset)[0],
            "carried": _short(np.mean([curve for _, curve in found], axis=0)),
        }

    def _within(self, seed: int) -> tuple[FloatArray, FloatArray]:
        """Return the loss after each round of one set, and the mean opinion after L rounds."""
        learner = _Learner(self.shared, seed)
        clients, losses, opinion = self._chosen(learner, seed, 0), list[float](), 0.0
        for round_ in range(1, ROUNDS + 1):
            learner.round(round_, clients)
            losses.append(learner.loss())
            if round_ == L:
                opinion = float(learner.learner.opinions().mean())
        return np.array(losses), np.array([opinion])

    def _slots(self, seed: int) -> FloatArray:
        learner, means = _Learner(self.shared, seed), list[float]()
        for slot in range(SLOTS):
            clients = self._chosen(learner, seed, slot)
            for round_ in range(slot * L + 1, (slot + 1) * L + 1):
                learner.round(round_, clients)
            means.append(float(learner.learner.opinions().mean()))
        return np.array(means)

    def _chosen(self, learner: "_Learner", seed: int, slot: int) -> tuple[int, ...]:
        if self.members:
            return self.members
        rng = np.random.default_rng((seed, slot))
        return tuple(sorted(rng.choice(learner.clients, self.size, replace=False).tolist()))


class _Learner:
    def __init__(self, shared: tuple[str, ...], seed: int) -> None:
        recipe = load_recipe("gda-mnist", shared)
        self.clients = recipe.world.clients
        self.learner = FederatedLearner(recipe, seed)
        self._world = make_world(recipe, seed)

    def round(self, number: int, clients: tuple[int, ...]) -> None:
        view = self._world.view(number)
        pairs = np.flatnonzero(np.isin(view.pair_client, clients))
        self.learner.advance(self._world.play(view, pairs))

    def loss(self) -> float:
        """Return the mean largest margin violation over all clients' training samples."""
        trainer = self.learner._trainer  # noqa: SLF001 - only this bench asks for a training loss
        x, y = trainer._train.x, trainer._train.y  # noqa: SLF001
        assert isinstance(trainer.model, BatchedModel)
        scores = trainer.model.scores(self.learner.model[None], x[None])[0]
        own = scores[y, np.arange(len(y))]
        rivals = scores + 1.0
        rivals[y, np.arange(len(y))] -= 1.0
        return float((rivals.max(axis=0) - own).mean())


def _short(values: FloatArray) -> list[float]:
    return [round(float(value), 4) for value in values]
