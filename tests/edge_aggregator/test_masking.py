"""An edge with masked updates, live: exact sums, void rounds, and no update of one device."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec.structs import replace

from fedagent_protocol import messages as m
from fedagent_protocol.signed import identity_of
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors
from fedagent_task.recipe.spec import ModelSpec, SecureAggregationSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes
from fedagent_task.secure_aggregation.keys import Place
from fedagent_task.secure_aggregation.member import Member
from fedagent_task.secure_aggregation.ring import MASKED, add_masks, ring_of, vector_of

from .harness import DELAY_S, Field, ToyAgent, delta, model_tensors

SPEC = SecureAggregationSpec(minimum_cohort=3, largest=8.0, stage_s=1.0)
BODY = task_bytes(
    TaskSpec(model=ModelSpec(kind="softmax", features=2, classes=2), secure_aggregation=SPEC)
)
RING = ring_of(SPEC, 1_000_000)
STAGES = ("mask-keys", "mask-shares", "update", "mask-opening")


@dataclass
class MaskedAgent(ToyAgent):
    """Masks its update once its shares are delivered; falls silent before `drops` is sent."""

    drops: str = ""
    wait_s: float = 0.0
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
        f.to_edge(self.id, message)
        member = self.member
        assert member is not None
        if isinstance(message, m.MaskKeys | m.MaskShares):
            # As agents do: again until the next stage shows that it came.
            f.later(0.2, lambda: self._again(message, member, f))

    def _again(self, message: m.MaskKeys | m.MaskShares, member: Member, f: Field) -> None:
        settled = member.ready if isinstance(message, m.MaskShares) else member.cohort_size > 0
        if self.member is member and not settled and not self.silent:
            f.to_edge(self.id, message)
            f.later(0.2, lambda: self._again(message, member, f))

    def _done(self, work: m.TrainOrder | m.OpinionCall, f: Field) -> None:
        assert isinstance(work, m.TrainOrder)
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
        f.later(self.wait_s, lambda: self._offer(order, f))

    def _offer(self, order: m.TrainOrder, f: Field) -> None:
        assert self.member is not None
        self.overrides = {"num_samples": 1, "agreed": self.member.agreement()}
        self.make_offer(order)
        self._repeat(f)


def secure_field(directory: Path, count: int, **facts: object) -> Field:
    made = [Ed25519PrivateKey.generate() for _ in range(count)]
    agents: dict[str, ToyAgent] = {}
    for place, key in enumerate(made):
        agent = identity_of(key.public_key().public_bytes_raw())
        agents[agent] = MaskedAgent(agent, key=key, samples=10 * (place + 1))
    return Field(directory, agents, body=BODY, **facts).ready()  # type: ignore[arg-type]


def devices(f: Field) -> list[MaskedAgent]:
    return [agent for agent in f.agents.values() if isinstance(agent, MaskedAgent)]


def model_of(f: Field, report: m.RoundReport) -> dict[str, np.ndarray]:
    data = (f.directory / "models" / report.model).read_bytes()
    return dict(decode_tensors(data, Manifest.of(model_tensors())))


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
    made = model_of(f, report)
    for name, array in expected(agents).items():
        assert np.array_equal(made[name], array)
    assert report.weight == pytest.approx(sum(agent.samples for agent in agents))


@pytest.mark.parametrize("stage", ["", *STAGES])
@pytest.mark.parametrize("count", [4, 9])
def test_a_third_drops_out_and_the_sum_is_exact(tmp_path: Path, stage: str, count: int) -> None:
    """G4."""
    f = secure_field(tmp_path, count)
    lost = devices(f)[: count // 3] if stage else []
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


def test_an_update_outside_of_the_masks_is_refused(tmp_path: Path) -> None:
    f = secure_field(tmp_path, 4)
    outsider = devices(f)[0]
    outsider.drops = "mask-keys"
    for one in devices(f)[1:]:
        one.work_s = 3.0
    f.order(1)
    f.run_for(1.5)
    outsider.body = encode_tensors(delta(outsider.id))
    outsider.silent = False
    f.to_edge(outsider.id, outsider.make_offer(devices(f)[1].orders[-1]))
    report = f.run_until_report(1)
    exact(f, report, devices(f)[1:])
    (told,) = [one for one in report.outcomes if one.agent == outsider.id]
    assert (told.valid, told.reason) == (False, "not_in_cohort")
    assert outsider.receipts[-1].reason == "not_in_cohort"


def test_a_plain_update_of_who_is_in_the_masks_is_refused(tmp_path: Path) -> None:
    f = secure_field(tmp_path, 4)
    plain = devices(f)[0]
    plain.drops = "update"
    f.order(1)
    f.run_for(1.5)
    plain.silent, plain.body = False, encode_tensors(delta(plain.id))
    assert plain.member is not None
    plain.overrides = {"agreed": plain.member.agreement()}
    f.to_edge(plain.id, plain.make_offer(plain.orders[-1]))
    report = f.run_until_report(1)
    exact(f, report, devices(f)[1:])
    assert plain.receipts[-1].reason == "manifest_mismatch"


@pytest.mark.parametrize("seed", range(8))
def test_messages_that_are_lost_repeated_and_late_change_no_sum(tmp_path: Path, seed: int) -> None:
    f = secure_field(tmp_path, 6)
    f.lossy = random.Random(seed)
    for number in (1, 2):
        f.order(number, max_wait_ms=10_000)
        report = f.run_until_report(number)
        used = {one.agent for one in report.outcomes if one.used}
        if not report.failed:
            before = model_tensors() if number == 1 else None
            assert len(used) >= 3
            if before is not None:
                exact(f, report, [one for one in devices(f) if one.id in used])


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


def test_keys_that_are_not_signed_and_answers_that_nobody_wants_change_nothing(
    tmp_path: Path,
) -> None:
    f = secure_field(tmp_path, 4)
    f.order(1)
    liar = devices(f)[0]
    name: dict[str, object] = {"run": f.core.memory.run, "round": 1}
    keys = replace(_keys(devices(f)[1], 1), mask=bytes(32))
    forgeries: list[Callable[[], m.AnyMessage]] = [
        lambda: m.MaskKeys(keys=keys, **name),  # type: ignore[arg-type]
        lambda: m.MaskShares(shares={}, commitment=bytes(32), **name),  # type: ignore[arg-type]
        lambda: m.MaskOpening(shares={}, **name),  # type: ignore[arg-type]
    ]
    for make in forgeries:
        f.to_edge(liar.id, make())
    f.to_edge("stranger", m.MaskKeys(keys=keys, **name))  # type: ignore[arg-type]
    f.run_for(DELAY_S)
    exact(f, f.run_until_report(1), devices(f))
    assert f.core.counters["masking_other_key"] == 1
    assert f.core.counters["masking_unasked"] == 1


def _keys(agent: MaskedAgent, number: int) -> m.MemberKeys:
    public = agent.key.public_key().public_bytes_raw()
    place = Place("0" * 31 + "1", number, "edge")
    return Member(agent.id, public, agent.key.sign, place, SPEC).keys().keys
