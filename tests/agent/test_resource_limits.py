"""Resource limits in the agent's core: abortes, load limits, memory, cold starts."""

from pathlib import Path

import pytest

from fedagent_agent.core.device import Readings
from fedagent_agent.core.effects import Measured
from fedagent_agent.trainer.frames import Cancel, Train
from fedagent_protocol.messages import (
    ContextReport,
    Decline,
    DeclineReason,
    TrainStats,
    UpdateOffer,
)
from fedagent_task.recipe.text import parse_recipe
from fedagent_testbed.world import VirtualFederation
from tests.fakes.hand_edge import REAL, HandEdge, joined, model_of
from tests.world.kinds import RECIPE

MODEL = model_of(3000)
EMPTY = Readings(available=False, reason="on battery, at 5%", battery=0.05, temperature_c=41.0)


@pytest.fixture
def edge(tmp_path: Path) -> HandEdge:
    """An agent in training, whose device and task have load limits."""
    edge = joined(tmp_path, task=REAL, load_limit_s=2.0)
    edge.serve(edge.order(1, MODEL, load_limit_ms=1300), MODEL)
    return edge


def features(edge: HandEdge) -> dict[str, float]:
    return edge.said(ContextReport)[-1].features


# --------------------------------------------------------------------- abort


def test_an_abort_in_mid_training_withdraws_the_order_once(edge: HandEdge) -> None:
    (job,) = edge.jobs(Train)
    edge.measure(EMPTY)
    assert edge.jobs(Cancel) == [Cancel(job=job.job)]
    (decline,) = edge.said(Decline)
    assert (decline.round, decline.reason) == (1, DeclineReason.UNAVAILABLE)
    assert decline.detail == "on battery, at 5%"
    edge.measure(EMPTY)
    edge.train(job, b"too late")
    assert len(edge.said(Decline)) == 1
    assert not edge.said(UpdateOffer)
    assert not Path(job.out).exists()


def test_an_abort_in_mid_round_voids_the_reservation_once(tmp_path: Path) -> None:
    """The three roles in virtual time, on a real ledger (RELIABILITY D7)."""
    world = VirtualFederation(tmp_path, parse_recipe(RECIPE), seed=3, agents=3, train_s=1.0)
    node, agent = world.nodes["agent-0"], world.agents["agent-0"]
    aborted: list[int] = []

    def look() -> None:
        """The device is empty as soon as it trains, and full again two seconds later."""
        work = agent.core.queue.active_order if agent.driver is not None else None
        if work is None or work.job is None:
            world.kernel.after(0.05, lambda: node.run(look))
            return
        aborted.append(work.key.round)
        read(EMPTY)
        world.kernel.after(2.0, lambda: node.run(lambda: read(Readings())))

    def read(readings: Readings) -> None:
        agent.receive(Measured(readings))

    world.kernel.after(1.0, lambda: node.run(look))
    ending = world.run()
    assert ending.balanced, ending.problems
    assert (ending.reason, ending.rounds_done) == ("rounds", 6)
    assert len(aborted) == 1
    mine = [number for number, name in ending.paid if name == "agent-0"]
    assert aborted[0] not in mine
    assert len(set(mine)) == len(mine) >= 1
    assert ending.spent_micro == 100_000 * len(ending.paid)


# --------------------------------------------------------------- load limits


@pytest.mark.parametrize(
    ("device", "task_ms", "limit"), [(0.0, 0, 0.0), (2.0, 0, 2.0), (0.0, 1300, 1.3), (1.0, 1300, 1)]
)
def test_the_smaller_of_both_load_limits_counts(
    tmp_path: Path, device: float, task_ms: int, limit: float
) -> None:
    edge = joined(tmp_path, task=REAL, load_limit_s=device)
    edge.serve(edge.order(1, MODEL, load_limit_ms=task_ms), MODEL)
    assert edge.jobs(Train)[0].load_limit_s == limit
    assert features(edge).get("load_limit_s") == (device or None)


def test_what_the_trainer_did_is_offered(edge: HandEdge) -> None:
    stats = TrainStats(num_samples=7, iterations=3, arrivals=500, steps=50, limited=True)
    edge.train(edge.jobs(Train)[0], b"an update", stats, train_s=1.2999)
    (offer,) = edge.said(UpdateOffer)
    assert (offer.stats.steps, offer.stats.train_ms, offer.stats.limited) == (50, 1300, True)
    # What had gathered before the first training is no measure of arrivals.
    assert "arrivals_per_step" not in features(edge)
    edge.now += 10
    edge.serve(edge.order(2, MODEL), MODEL)
    edge.train(edge.jobs(Train)[-1], b"an update", stats)
    context = edge.said(UpdateOffer)[-1].context
    assert context is not None
    assert context.features["arrivals_per_step"] == 10
    assert context.features["arrivals_per_s"] == 50
