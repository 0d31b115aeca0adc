"""When the edges' models are merged, and where a slot begins: seen from the mean model."""

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from msgspec import structs

from fedagent_coordinator.policies import Feedback
from fedagent_protocol.messages import Weighting
from fedagent_protocol.tensors import decode_tensors
from fedagent_testbed.learning.aggregating import FEDAVG, EdgeModels
from fedagent_testbed.learning.trainer import FederatedLearner
from fedagent_testbed.recipe import Weighting as Weighted
from fedagent_testbed.study import TestbedRecipe as Study
from fedagent_testbed.study import load_recipe, make_world
from tests.fakes.engine_field import MANIFEST, START_BYTES, Field, settings, toy_edges
from tests.fakes.toy_edge import arrived, declined

DIGITS = (
    *(
        "world.clients=6",
        "world.edges=2",
        "world.training.dataset=digits",
        "world.training.epochs=1",
    ),
    *("world.training.samples_per_client=30", "world.training.rate=0.1", "rounds.deadline_s=1e9"),
)


def merged(
    models: npt.NDArray[np.float32],
    learnt: npt.NDArray[np.float64] | None = None,
    weighting: Weighted = "uniform",
) -> npt.NDArray[np.float32]:
    """Return the models of edges, float32[M, d], after a merge."""
    held = EdgeModels(models, FEDAVG, weighting, 1)
    held.learnt = held.learnt if learnt is None else learnt
    held.merge()
    return held.models


def recipe(*sets: str) -> Study:
    return load_recipe("cocs-decisions", (*DIGITS, *sets))


def feedback(setting: Study, round_: int) -> Feedback:
    """Let clients 0 to 2 train at edge 0 and the others at edge 1; all are in time."""
    world = make_world(setting, 1)
    view = world.view(round_)
    here = (view.pair_client < 3) == (view.pair_edge == 0)
    found = world.play(view, np.flatnonzero(here))
    assert found.used.all()
    return found


def models(setting: Study, rounds: range) -> list[npt.NDArray[np.float32]]:
    """Return the mean model after each of these rounds."""
    learner, found = FederatedLearner(setting, 1), []
    for t in rounds:
        learner.advance(feedback(setting, t))
        found.append(learner.model)
    return found


@pytest.mark.parametrize("every", [1, 2, 3])
def test_edges_go_on_from_the_merged_model_after_every_merge(every: int) -> None:
    rounds = range(1, 5)
    merging = models(recipe(f"rounds.merge_every={every}"), rounds)
    alone = models(recipe("rounds.merge_every=100"), rounds)
    same = [np.allclose(a, b, atol=1e-6) for a, b in zip(merging, alone, strict=True)]
    assert same == [t <= every for t in rounds]


def live_merge(
    silent: set[int], samples: npt.NDArray[np.int64], rounds: int, weighting: str
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Play rounds by the coordinator's engine; return both edges' models, and what it merges.

    Clients 0 to 2 are edge 0's, the others edge 1's; who is `silent` declines every order.
    """
    edges = toy_edges(2, 3)
    for n in range(6):
        agent = edges[n // 3].agents[n % 3]
        weight = float(samples[n]) if weighting == "samples" else 1.0
        here = structs.replace(arrived(agent.id, num_samples=int(samples[n])), weight=weight)
        agent.outcome = declined(agent.id) if n in silent else here
    field = Field(
        edges,
        settings(
            count=rounds,
            merge_every=rounds,
            wait_edges=2,
            wait_agents=6,
            weighting=Weighting(weighting),
        ),
    )
    field.run()

    def flat(data: bytes) -> npt.NDArray[np.float32]:
        tensors = decode_tensors(data, MANIFEST)
        return np.concatenate([tensors[name].ravel() for name in sorted(tensors)])

    learnt = {one.edge: one.model for r in sorted(field.settled) for one in field.settled[r].edges}
    own = [learnt.get(edge.id, "") for edge in edges]
    parts = np.stack([flat(field.blobs.get(d, START_BYTES)) for d in own])
    return parts, flat(field.blobs[field.committed[-1]])


@pytest.mark.parametrize("weighting", ["uniform", "samples"])
@pytest.mark.parametrize("silent", [set(), {4}, {0, 1, 5}, {3, 4, 5}])
def test_a_merge_is_that_of_the_live_coordinator(silent: set[int], weighting: str) -> None:
    """Edges differ by how many trained, and by how many samples these have."""
    own = [one for one in DIGITS if "samples_per_client" not in one]
    own += ["world.training.partition=dirichlet", f"world.training.weighting={weighting}"]
    setting = load_recipe("cocs-decisions", (*own, "rounds.merge_every=9"))
    learner = FederatedLearner(setting, 1)
    for t in (1, 2):
        found = feedback(setting, t)
        used = ~np.isin(found.view.pair_client[found.pairs], list(silent))
        learner.advance(replace(found, used=used))
    samples = learner._trainer.samples(1).astype(np.int64)
    assert len(set(samples.tolist())) > 1
    parts, live = live_merge(silent, samples, 2, weighting)
    np.testing.assert_array_equal(merged(parts, learner._edges.learnt, weighting)[1], live)  # type: ignore[arg-type] # one of two
    before, learnt = learner._edges.models, learner._edges.learnt
    nobody = np.zeros(6, dtype=np.bool_)
    learner.advance(replace(feedback(setting, 9), used=nobody))  # it is time to merge
    np.testing.assert_array_equal(learner._edges.models, merged(before, learnt, weighting))  # type: ignore[arg-type] # one of two
    np.testing.assert_array_equal(learner.model, learner._edges.models[1])


def test_samples_come_by_and_by_and_the_newest_are_kept() -> None:
    steady = ("world.training.arrivals=8", "world.training.buffer=20")
    trainer = FederatedLearner(recipe(*steady), 1)._trainer
    assert [int(trainer.samples(t)[0]) for t in (1, 2, 3, 4, 9)] == [8, 16, 20, 20, 20]
    held = [trainer._shards(t).of(2) for t in (3, 4, 9)]
    assert [part.start - trainer._train.of(2).start for part in held] == [4, 10, 10]
    assert held[-1].stop == trainer._train.of(2).stop, "the stream has ended"
    uneven = FederatedLearner(recipe(*steady, "world.training.skew=1"), 1)._trainer
    assert len(set(uneven.samples(1).tolist())) > 3
    first = models(recipe(*steady), range(1, 4))
    assert not np.array_equal(first[0], models(recipe(), range(1, 2))[0])


def test_devices_tell_the_losses_of_the_model_that_they_begin_from() -> None:
    setting = recipe()
    learner = FederatedLearner(setting, 1)
    found = replace(feedback(setting, 1), void=np.arange(6) == 5, X=np.arange(6) != 5, ending=None)
    first = learner.told(found)
    assert first.num_samples.tolist() == [30] * 5 + [0]
    # The first model gives every class a tenth.
    assert first.loss_rms == pytest.approx([math.log(10)] * 5 + [math.nan], nan_ok=True, rel=0.05)
    for t in range(1, 20):
        learner.advance(feedback(setting, t))
    later = learner.told(found).loss_rms
    assert later is not None
    assert (later[:5] < 0.85 * math.log(10)).all()
