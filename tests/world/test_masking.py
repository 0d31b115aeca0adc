"""Rounds with masked updates: exact sums, void rounds, liars that are named, and no update to see.

What a cohort makes of lies is in `tests/task/secure_aggregation`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from fedagent_node.data_dir import load_or_create
from fedagent_node.effects import Send
from fedagent_node.site.authority import Authority
from fedagent_protocol.signed import WorkClaim, claim_of
from fedagent_protocol.tensors import digest_of, encode_tensors
from fedagent_task.models import create
from tests.fakes.site import joined_at

from . import Played, World, m
from .invariants import flat

Make = Callable[..., World]
EDGE = "edge-0"
LEARNT = (
    "data={scale=0.125, offset=-0.6}",
    "learner={rate=0.2, batch=50, passes=1}",
    "aggregation.robust=none",
    *("policy.name=all", "budget.per_edge=9", "rounds.merge_every=1", "rounds.count=1"),
)
MASKS = ("secure_aggregation={minimum_cohort=3, largest=8, stage_s=0.6}",)
STAGES = ("mask-keys", "mask-shares", "update", "mask-opening")


def devices(world: Make, agents: int = 4, masks: tuple[str, ...] = MASKS, *sets: str) -> World:
    here = world(agents=agents, sets=(*LEARNT, *masks, *sets))
    return here.learn(*(f"digits:labels={n},start=80,rate=0.001" for n in range(agents)))


def nothing(_said: Any) -> list[Any]:
    return []


def reports(played: Played) -> list[m.RoundReport]:
    """Return what the edge said of each round, once."""
    return list(
        {one.message.round: one.message for one in played.wire.said(m.RoundReport)}.values()
    )


def outcomes(played: Played, report: m.RoundReport) -> dict[str, m.Outcome]:
    return {played.here.names[one.agent]: one for one in report.outcomes}


def model(played: Played, report: m.RoundReport) -> np.ndarray:
    body = played.wire.blob(report.model)
    assert body is not None
    return flat(body)


def exact(world: Make, played: Played, report: m.RoundReport, *without: str) -> None:
    """Check that a first round's sum is that of a run without masks and without these devices."""
    plain = devices(world, len(played.here.agents), ())
    for name in without:
        plain.lies(name, "update", nothing)
    again = plain.run(checked=False)
    assert report.failed == ""
    assert np.allclose(model(played, report), model(again, reports(again)[0]), atol=1e-5)
    names = played.here.agents.keys() - set(without)
    found = outcomes(played, report)
    assert {name for name, one in found.items() if one.used} == names
    assert not any(one.norm for one in report.outcomes), "the length of a mask is nobody's"


@pytest.mark.parametrize("stage", ["", *STAGES])
def test_a_device_drops_out_and_the_sum_is_exact(world: Make, stage: str) -> None:
    """G4."""
    here = devices(world)
    if stage:
        here.lies("agent-0", stage, nothing)
    played = here.run(checked=False)
    exact(world, played, reports(played)[0], *("agent-0",) * (stage not in ("", STAGES[-1])))
    offers = [one.message for one in played.wire.said(m.UpdateOffer)]
    assert {(one.stats.num_samples, one.stats.arrivals, one.note) for one in offers} == {(1, 0, "")}


@pytest.mark.parametrize("stage", STAGES)
def test_a_cohort_below_the_least_is_void_and_nothing_is_released(world: Make, stage: str) -> None:
    """G3."""
    here = devices(world, 4, MASKS, "rounds.count=2")
    for name in ("agent-0", "agent-1"):
        here.lies(name, stage, lambda said: [said] if said.round > 1 else [])
    played = here.run(checked=False)
    first, second = reports(played)
    assert first.failed
    assert (first.used, first.weight) == (0, 0.0)
    assert first.model in ("", played.wire.said(m.TrainOrder)[0].message.model)
    # Who did its part is paid all the same, and the next round is as if nothing had been.
    paid = [one for one in first.outcomes if one.valid]
    assert len(paid) == {"mask-keys": 0, "mask-shares": 0, "update": 2, "mask-opening": 4}[stage]
    assert (second.failed, second.used) == ("", 4)


def test_an_edge_that_restarts_has_no_sum_and_goes_on(world: Make) -> None:
    here = devices(world, 4, MASKS, "rounds.count=2", "rounds.every_s=10")
    played = here.kill("edge", at="complete").run(checked=False)
    first, second = reports(played)
    assert first.failed == "secure aggregation: the edge was restarted in the round"
    assert (second.failed, second.used) == ("", 4)


# ------------------------------------------------------------------------- liars


def plain_update(here: World, said: Any, *, agreed: bytes) -> m.UpdateOffer:
    """Return an update that wears no masks, signed as a device signs its work."""
    recipe, me = here.here.coordinator.recipe, here.here.agents["agent-0"].identity
    orders = [one.message for one in here.wire.said(m.TrainOrder) if one.to == me.id]
    body = encode_tensors(create(recipe.model).init(1))
    offer = m.UpdateOffer(
        run=said.run,
        round=said.round,
        digest=digest_of(body),
        size=len(body),
        chunk_bytes=262_144,
        base=orders[-1].model,
        task=orders[-1].task,
        first=body,
        stats=m.TrainStats(num_samples=1),
        agreed=agreed,
    )
    return replace(offer, claim=claim_of(me, WorkClaim.offered(offer, EDGE, me.id).statement))


@pytest.mark.parametrize("reason", ["not_in_cohort", "manifest_mismatch", "masking_not_agreed"])
def test_a_plain_update_is_refused_and_one_whose_masks_nobody_would_take_off(
    world: Make, reason: str
) -> None:
    here = devices(world)
    node = here.here.agents["agent-0"]

    def instead(said: Any) -> list[Any]:
        agreed = said.agreed if reason == "manifest_mismatch" else bytes(64)
        return [plain_update(here, said, agreed=agreed)]

    def beside(said: Any) -> list[Any]:
        def later() -> None:
            node.send(Send(EDGE, plain_update(here, said, agreed=b"")))

        here.here.kernel.after(1.0, later)
        return []

    if reason == "not_in_cohort":
        here.lies("agent-0", "mask-keys", beside)
    else:
        here.lies("agent-0", "update", instead)
    played = here.run(checked=False)
    exact(world, played, reports(played)[0], "agent-0")
    told = {one.message.reason for one in played.wire.said(m.Receipt) if one.to == node.id}
    assert reason in told


def false_answer(said: m.MaskOpening) -> list[Any]:
    return [replace(said, shares=dict.fromkeys(said.shares, bytes(66)))]


def rubbish(said: m.MaskShares) -> list[Any]:
    return [replace(said, shares=dict.fromkeys(said.shares, bytes(148)))]


def behind(here: World, name: str) -> Callable[[Any], list[Any]]:
    """Hold each message of a device back until who answers at once was heard."""
    node, held = here.here.agents[name], list[Any]()

    def hold(said: Any) -> list[Any]:
        if said in held:
            return [said]
        held.append(said)

        def send() -> None:
            node.send(Send(EDGE, said))

        here.here.kernel.after(0.2, send)
        return []

    return hold


@pytest.mark.parametrize(
    ("kind", "lie", "void"),
    [("mask-opening", false_answer, False), ("mask-shares", rubbish, True)],
)
def test_a_liar_is_named_not_paid_and_in_no_later_masks_also_after_a_restart(
    world: Make, kind: str, lie: Callable[[Any], list[Any]], void: bool
) -> None:
    here = devices(world, 6, MASKS, "rounds.count=2", "rounds.every_s=10")
    liar = "agent-0"
    for name in here.here.agents:  # a lie that comes after enough answers is not looked at
        here.lies(name, kind, lie if name == liar else behind(here, name))
    played = here.kill("edge", after=9.0).run(checked=False)
    assert played.died[EDGE] == 1
    first, second, *_ = reports(played)
    honest = played.here.agents.keys() - {liar}
    assert bool(first.failed) is void
    found = outcomes(played, first)
    assert {name for name, one in found.items() if one.valid} == honest
    assert (found[liar].status, found[liar].proof) == (m.OutcomeStatus.REJECTED, None)
    assert found[liar].reason == "masking_false_shares"
    told = [one.message for one in played.wire.said(m.Receipt) if one.to == found[liar].agent]
    assert ("void", found[liar].reason) in [(one.status, one.reason) for one in told]
    later = outcomes(played, second)
    assert {name for name, one in later.items() if one.used} == honest
    assert later[liar].reason == "masking_barred"
    assert liar not in {name for _, name in played.ending.paid}


def test_keys_that_are_not_signed_are_in_no_masks(world: Make) -> None:
    def unsigned(said: m.MaskKeys) -> list[Any]:
        return [replace(said, keys=replace(said.keys, signature=bytes(64)))]

    played = devices(world).lies("agent-0", "mask-keys", unsigned).run(checked=False)
    (report,) = reports(played)
    exact(world, played, report, "agent-0")
    assert outcomes(played, report)["agent-0"].reason.startswith("masking_")


# ---------------------------------------------------------------- members of a site


def enrol(here: World, authority: Authority, *names: str) -> None:
    for name in names:
        (folder := here.here.nodes[name].directory).mkdir(parents=True, exist_ok=True)
        agent = here.here.agents.get(name)
        me = load_or_create(folder) if agent is None else agent.identity
        own = authority.issue(me.public_bytes, "edge" if agent is None else "agent")
        joined_at(folder, me, own, authority.der)


def test_an_edge_of_a_site_lets_members_alone_into_the_masks(world: Make) -> None:
    here = devices(world)
    authority = Authority.create(here.here.coordinator.directory / "ca", "hall")
    enrol(here, authority, EDGE, "agent-1", "agent-2", "agent-3")
    played = here.run(checked=False)
    (report,) = reports(played)
    exact(world, played, report, "agent-0")


def test_a_device_of_a_site_masks_among_devices_of_its_site_alone(world: Make) -> None:
    """An edge cannot be everybody: whom it invents has no certificate."""
    here = devices(world)
    authority = Authority.create(here.here.coordinator.directory / "ca", "hall")
    enrol(here, authority, "agent-1", "agent-2")
    played = here.run(seconds=30.0, checked=False)
    sharing = {played.here.names[one.sender] for one in played.wire.said(m.MaskShares)}
    assert sharing == {"agent-0", "agent-3"}, "they belong to none"


def test_a_device_opens_only_for_enough(world: Make) -> None:
    def few(said: m.MaskAsk) -> list[Any]:
        return [replace(said, survivors=said.survivors[:2])]

    played = devices(world).lies(EDGE, "mask-ask", few).run(seconds=30.0, checked=False)
    assert played.wire.said(m.MaskAsk)
    assert not played.wire.said(m.MaskOpening)
    assert reports(played)[0].failed
