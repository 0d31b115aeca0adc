"""Who says other things than it means to hurts itself, and nobody else."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from msgspec import structs

from fedagent_protocol.signed import WorkClaim, claim_of
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.models import create
from fedagent_testbed.world import seeded_identity

from . import ROUNDS, World, m

Make = Callable[..., World]
SEED = 1
POISONS = {
    "nan": "non_finite",
    "norm": "norm",
    "manifest": "manifest_mismatch",
    "garbage": "oversize",
    "digest": "digest_mismatch",
    "oversize": "oversize",
    "samples": "sample_count",
}
"""What each is rejected for."""


def poisoned(here: World, name: str, poison: str, offer: m.UpdateOffer) -> list[m.UpdateOffer]:
    """Return an offer of a bad update, signed as a device signs its work."""
    tensors = create(here.here.coordinator.recipe.model).init(0)
    tensors = {name: np.zeros_like(each) for name, each in tensors.items()}
    first = next(iter(tensors.values()))
    if poison == "nan":
        first.flat[3] = np.nan
    if poison == "norm":
        first[:] = 1e6
    body = encode_tensors({"x": first} if poison == "manifest" else tensors)
    if poison == "garbage":
        body = np.random.default_rng(0).bytes(4000)
    said = structs.replace(
        offer,
        digest="0" * 64 if poison == "digest" else digest_of(body),
        size=2**40 if poison == "oversize" else len(body),
        chunk_bytes=262_144,
        first=body,
        stats=m.TrainStats(num_samples=2**50 if poison == "samples" else 10),
    )
    me = seeded_identity(SEED, name)
    claim = claim_of(me, WorkClaim.offered(said, "edge-0", me.id).statement)
    return [structs.replace(said, claim=claim)]


def test_poison_is_rejected_with_a_reason_and_the_round_goes_on(world: Make) -> None:
    sets = ("policy.name=cheapest", "budget.per_edge=10", "limits.norm=100")
    here = world(agents=2 + len(POISONS), sets=sets, seed=SEED)
    liars = {f"agent-{i}": poison for i, poison in enumerate(POISONS, start=2)}
    for name, poison in liars.items():
        here.lies(name, "update", partial(poisoned, here, name, poison))
    played = here.run()
    assert len(played.ending.paid) == 2 * ROUNDS
    assert {name for _, name in played.ending.paid} == {"agent-0", "agent-1"}
    assert [one.message.used for one in played.wire.said(m.RoundReport)] == [2] * ROUNDS
    told: dict[str, set[tuple[str, str]]] = {name: set() for name in liars}
    for one in played.wire.said(m.Receipt):
        if (name := played.here.names[one.to]) in told:
            told[name].add((one.message.status, one.message.reason))
    rejected = m.ReceiptStatus.REJECTED
    assert told == {name: {(rejected, POISONS[poison])} for name, poison in liars.items()}


def test_an_agent_that_never_answers_is_waited_for_no_longer_than_max_wait(world: Make) -> None:
    def silent(_: Any) -> list[Any]:
        return []

    played = world(agents=3).lies("agent-2", "update", silent).run(checked=False)
    assert played.ending.rounds_done == ROUNDS
    assert {name for _, name in played.ending.paid} == {"agent-0", "agent-1"}


def test_an_edge_that_orders_again_and_again_gets_no_second_training(world: Make) -> None:
    kept: list[m.TrainOrder] = []

    def again(order: m.TrainOrder) -> list[m.TrainOrder]:
        kept.append(order)
        return [order, *(structs.replace(old, seq=order.seq) for old in kept)]

    sets = ("rounds.count=5", "rounds.every_s=2", "rounds.min_updates=1")
    played = world(agents=4, sets=sets).lies("edge-0", "order", again).run()
    assert len(played.trainings.made) == len(set(played.trainings.made)) == 4 * 5
