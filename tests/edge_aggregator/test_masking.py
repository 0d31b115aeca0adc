"""An edge with masked updates, live: exact sums, void rounds, and liars that are named.

What a cohort makes of lies is in tests/task/secure_aggregation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from fedagent_node.data_dir import load_or_create
from fedagent_node.site.authority import Authority
from fedagent_node.site.credentials import Joined, store_credentials
from fedagent_protocol import messages as m
from fedagent_protocol.signed import identity_of
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors
from fedagent_task.recipe.spec import ModelSpec, SecureAggregationSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes
from fedagent_task.secure_aggregation.keys import Place
from fedagent_task.secure_aggregation.member import Member
from fedagent_task.secure_aggregation.ring import MASKED, add_masks, ring_of, vector_of

from .harness import Field, ToyAgent, delta, model_tensors

SPEC = SecureAggregationSpec(minimum_cohort=3, largest=8.0, stage_s=1.0)
BODY = task_bytes(
    TaskSpec(model=ModelSpec(kind="softmax", features=2, classes=2), secure_aggregation=SPEC)
)
RING = ring_of(SPEC, 1_000_000)
STAGES = ("mask-keys", "mask-shares", "update", "mask-opening")


@dataclass
class MaskedAgent(ToyAgent):
    """Masks its update once its shares are delivered; falls silent before `drops` is sent.

    `lie` is what it sends in the place of what it should; None: nothing, this once.
    """

    drops: str = ""
    lie: Callable[[m.AnyMessage], m.AnyMessage | None] = lambda said: said
    key: Ed25519PrivateKey = field(default_factory=Ed25519PrivateKey.generate)
    certificate: bytes = b""
    member: Member | None = None
    trained: m.TrainOrder | None = None

    def receive(self, message: m.AnyMessage, f: Field) -> None:
        if self.silent:
            return
        masks = m.MaskRoster | m.MaskDelivery | m.MaskAsk
        if isinstance(message, masks) and message.round != self.orders[-1].round:
            return  # late, of the round before
        match message:
            case m.TrainOrder() if self.member is None or self.member.place.round != message.round:
                public = self.key.public_key().public_bytes_raw()
                place = Place(message.run, message.round, "edge")
                self.member = Member(self.id, public, self.key.sign, place, SPEC)
                self.member.certificate = self.certificate
                self.trained = None
                self._say(self.member.keys(), f)
            case m.MaskRoster():
                assert self.member is not None
                self._say(self.member.roster(message), f)
            case m.MaskDelivery():
                assert self.member is not None
                self.member.delivery(message)
                self._go_on(f)
            case m.MaskAsk():
                assert self.member is not None
                self._say(self.member.opening(message), f)
            case _:
                pass
        super().receive(message, f)

    def _say(self, message: m.AnyMessage, f: Field) -> None:
        if m.kind(message) == self.drops:
            self.silent = True
            return
        shown, member = self.lie(message), self.member
        if shown is None or member is None:
            return
        f.to_edge(self.id, shown)
        if isinstance(shown, m.MaskKeys | m.MaskShares):
            # As agents do: again until the next stage shows that it came.
            f.later(0.2, lambda: self._again(shown, member, f))

    def _again(self, message: m.MaskKeys | m.MaskShares, member: Member, f: Field) -> None:
        settled = member.ready if isinstance(message, m.MaskShares) else bool(member._roster)
        if self.member is member and not settled and not self.silent:
            f.to_edge(self.id, message)
            f.later(0.2, lambda: self._again(message, member, f))

    def _done(self, work: m.TrainOrder, f: Field) -> None:
        self.trained = work
        self._go_on(f)

    def _go_on(self, f: Field) -> None:
        if self.trained is None or self.member is None or not self.member.ready:
            return
        if self.drops == "update":
            self.silent = True
            return
        vector = vector_of(delta(self.id), self.samples, RING)
        add_masks(vector, self.member.seeds(), RING)
        self.body = encode_tensors({MASKED: vector.view(np.int64)})
        order, self.trained = self.trained, None
        told = m.TrainStats(num_samples=1)
        self.overrides = {"stats": told, "agreed": self.member.agreement()}
        self.make_offer(order)
        self._repeat(f)


def secure_field(directory: Path, count: int) -> Field:
    made = [Ed25519PrivateKey.generate() for _ in range(count)]
    agents: dict[str, ToyAgent] = {}
    for place, key in enumerate(made):
        agent = identity_of(key.public_key().public_bytes_raw())
        agents[agent] = MaskedAgent(agent, key=key, samples=10 * (place + 1))
    return Field(directory, agents, body=BODY).ready()


def devices(f: Field) -> list[MaskedAgent]:
    return [agent for agent in f.agents.values() if isinstance(agent, MaskedAgent)]


def expected(agents: list[MaskedAgent]) -> dict[str, np.ndarray]:
    """Return the base with the exact mean of the rounded updates."""
    total = sum(agent.samples for agent in agents)
    found: dict[str, np.ndarray] = {}
    for name, base in model_tensors().items():
        steps = sum(
            np.rint(delta(a.id)[name].astype(float) * RING.steps) * a.samples for a in agents
        )
        found[name] = (base.astype(float) + steps / RING.steps / total).astype(np.float32)
    return found


def exact(f: Field, report: m.RoundReport, agents: list[MaskedAgent]) -> None:
    assert report.failed == ""
    assert report.used == len(agents)
    assert not any(one.norm for one in report.outcomes), "the length of a mask is nobody's"
    data = f.model_bytes(report.model)
    made = decode_tensors(data, Manifest.of(model_tensors()))
    for name, array in expected(agents).items():
        assert np.array_equal(made[name], array)
    assert report.weight == pytest.approx(sum(agent.samples for agent in agents))


@pytest.mark.parametrize("stage", ["", *STAGES])
def test_a_third_drops_out_and_the_sum_is_exact(tmp_path: Path, stage: str) -> None:
    """G4."""
    f = secure_field(tmp_path, 4)
    lost = devices(f)[:1] if stage else []
    for one in lost:
        one.drops = stage
    f.order(1)
    report = f.run_until_report(1)
    kept = [one for one in devices(f) if one not in lost or stage == "mask-opening"]
    exact(f, report, kept)
    assert f.core.counters["updates_accepted"] == len(kept)


@pytest.mark.parametrize("stage", STAGES)
def test_a_cohort_below_the_least_is_void_and_nothing_is_released(
    tmp_path: Path, stage: str
) -> None:
    """G3."""
    f = secure_field(tmp_path, 4)
    for one in devices(f)[:2]:
        one.drops = stage
    f.order(1)
    report = f.run_until_report(1)
    assert report.failed
    assert (report.used, report.weight, report.model) == (0, 0.0, f.digest)
    assert not any(one.used for one in report.outcomes)
    # Whoever did its part is paid all the same, and the next round is as if nothing had been.
    paid = [one for one in report.outcomes if one.valid]
    assert len(paid) == {"mask-keys": 0, "mask-shares": 0, "update": 2, "mask-opening": 4}[stage]
    for one in devices(f):
        one.drops, one.silent = "", False
        one.hello(f)
    f.run_for(1.0)
    f.order(2)
    exact(f, f.run_until_report(2), devices(f))


@pytest.mark.parametrize(
    ("drops", "agreed", "reason"),
    [
        ("mask-keys", b"", "not_in_cohort"),
        ("update", b"", "manifest_mismatch"),
        ("update", bytes(64), "masking_not_agreed"),
    ],
)
def test_a_plain_update_is_refused_and_one_whose_masks_nobody_would_take_off(
    tmp_path: Path, drops: str, agreed: bytes, reason: str
) -> None:
    f = secure_field(tmp_path, 4)
    first, *others = devices(f)
    first.drops = drops
    for one in others:
        one.work_s = 3.0
    f.order(1)
    f.run_for(1.5)
    first.silent, first.body = False, encode_tensors(delta(first.id))
    if drops == "update" and first.member is not None:
        first.overrides = {"agreed": agreed or first.member.agreement()}
    f.to_edge(first.id, first.make_offer(others[0].orders[-1]))
    report = f.run_until_report(1)
    exact(f, report, others)
    assert (outcome_of(report, first).valid, outcome_of(report, first).reason) == (False, reason)
    assert first.receipts[-1].reason == reason


def test_an_edge_that_restarts_has_no_sum_and_goes_on(tmp_path: Path) -> None:
    f = secure_field(tmp_path, 4)
    f.order(1)
    f.kill_at = "edge.receipted"
    report = f.run_until_report(1)
    assert f.kills == 1
    assert report.failed == "secure aggregation: the edge was restarted in the round"
    f.run_for(1.0)
    f.order(2)
    exact(f, f.run_until_report(2), devices(f))


def outcome_of(report: m.RoundReport, one: MaskedAgent) -> m.Outcome:
    return next(outcome for outcome in report.outcomes if outcome.agent == one.id)


def false_answer(said: m.AnyMessage) -> m.AnyMessage:
    if isinstance(said, m.MaskOpening):
        return replace(said, shares=dict.fromkeys(said.shares, bytes(66)))
    return said


def rubbish(said: m.AnyMessage) -> m.AnyMessage:
    if isinstance(said, m.MaskShares):
        return replace(said, shares=dict.fromkeys(said.shares, bytes(148)))
    return said


@pytest.mark.parametrize(
    ("lie", "void", "said"),
    [
        (false_answer, False, "it answered with false shares; it is in no masks"),
        (rubbish, True, "gave out shares that do not open"),
    ],
)
def test_a_liar_is_named_not_paid_and_in_no_later_masks_also_after_a_restart(
    tmp_path: Path, lie: Callable[[m.AnyMessage], m.AnyMessage], void: bool, said: str
) -> None:
    f = secure_field(tmp_path, 6)
    # Answers come in the order of ids: a lie that comes after enough of them is not looked at.
    liar, *honest = sorted(devices(f), key=lambda one: one.id)
    liar.lie = lie
    f.order(1)
    report = f.run_until_report(1)
    assert bool(report.failed) is void
    assert {one.agent for one in report.outcomes if one.valid} == {one.id for one in honest}
    told = outcome_of(report, liar)
    assert (told.status, told.proof) == (m.OutcomeStatus.REJECTED, None)
    assert told.reason == "masking_false_shares"
    assert said in " ".join(note.text for note in f.notes if note.peer == liar.id)
    f.run_for(1.0)
    f.restart()
    f.run_for(1.0)
    f.order(2)
    second = f.run_until_report(2)
    assert {one.agent for one in second.outcomes if one.used} == {one.id for one in honest}
    assert outcome_of(second, liar).reason == "masking_barred"


def test_keys_that_are_not_signed_are_in_no_masks_and_answers_of_strangers_are_ignored(
    tmp_path: Path,
) -> None:
    f = secure_field(tmp_path, 4)
    first, *others = devices(f)
    first.lie = lambda said: (
        replace(said, keys=replace(said.keys, signature=bytes(64)))
        if isinstance(said, m.MaskKeys)
        else said
    )
    f.order(1)
    f.to_edge("stranger", m.MaskOpening(shares={}, run=f.core.memory.run, round=1))
    report = f.run_until_report(1)
    exact(f, report, others)
    assert outcome_of(report, first).reason.startswith("masking_")
    assert f.core.counters["masking_unasked"] == 1


@pytest.mark.parametrize("shown", ["none", "another's", "its own"])
def test_an_edge_of_a_site_lets_members_alone_into_the_masks(tmp_path: Path, shown: str) -> None:
    authority = Authority.create(tmp_path / "ca", "hall")
    f = secure_field(tmp_path / "edge", 5)
    me = load_or_create(home := f.directory)
    joined = Joined(site="hall", fingerprint="0" * 64)
    store_credentials(home, me, authority.issue(me.public_bytes, "edge"), authority.der, joined)
    certificates = {
        one.id: authority.issue(one.key.public_key().public_bytes_raw(), "agent").der
        for one in devices(f)
    }
    first, *others = devices(f)
    told = {"none": b"", "another's": certificates[others[0].id], "its own": certificates[first.id]}
    certificates[first.id] = told[shown]
    for one in devices(f):
        one.certificate = certificates[one.id]
    f.order(1)
    kept = [first, *others] if shown == "its own" else others
    exact(f, f.run_until_report(1), kept)
    assert (f.core.counters["masking_stranger"] > 0) == (shown != "its own")
