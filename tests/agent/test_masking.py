"""A device in secure aggregation: the edge is played by hand, the other devices are real."""

from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from fedagent_agent.trainer.frames import Mask, Masked, Train
from fedagent_node.data_dir import load_or_create
from fedagent_node.site.authority import Authority
from fedagent_node.site.credentials import Joined, store_credentials
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import decode_tensors, digest_of
from fedagent_task.models import create
from fedagent_task.recipe.spec import ModelSpec, SecureAggregationSpec, TaskSpec
from fedagent_task.secure_aggregation.keys import Place, bound, check_agreed
from fedagent_task.secure_aggregation.member import Member
from fedagent_task.secure_aggregation.ring import MASKED, add_masks, ring_of, vector_of
from tests.fakes.hand_edge import EDGE, RUN, HandEdge, joined, model_of
from tests.fakes.trainer_bench import TrainerBench, demo

SPEC = SecureAggregationSpec(minimum_cohort=3)
SECURE = TaskSpec(model=ModelSpec(kind="softmax", features=64, classes=10), secure_aggregation=SPEC)
MODEL, UPDATE = model_of(2000), model_of(2000, 3)


class Others:
    """An edge's and three other devices' side of one round."""

    def __init__(self, folder: Path, number: int = 1) -> None:
        self.members: dict[str, Member] = {}
        for place in range(3):
            home = folder / f"other-{place}"
            home.mkdir(parents=True)
            who = load_or_create(home)
            where = Place(RUN, number, EDGE)
            self.members[who.id] = Member(who.id, who.public_bytes, who.sign, where, SPEC)
        self.number = number

    def roster(self, agent: str, keys: m.MaskKeys) -> m.MaskRoster:
        members = {one: member.keys().keys for one, member in self.members.items()}
        members[agent] = keys.keys
        return m.MaskRoster(run=RUN, round=self.number, members=members)

    def delivery(self, agent: str, roster: m.MaskRoster) -> m.MaskDelivery:
        return self._delivery(agent, self._made(roster))

    def ask(
        self, agent: str, roster: m.MaskRoster, said: m.MaskShares, *survivors: str
    ) -> m.MaskAsk:
        """Name survivors, with what those of them who are here sign of a cohort of all."""
        made = {**self._made(roster), agent: said}
        agreed: dict[str, bytes] = {}
        for one, member in self.members.items():
            member.delivery(self._delivery(one, made))
            agreed[one] = member.agreement()
        return m.MaskAsk(run=RUN, round=self.number, survivors=survivors, agreed=agreed)

    def _made(self, roster: m.MaskRoster) -> dict[str, m.MaskShares]:
        return {one: member.roster(roster) for one, member in self.members.items()}

    def _delivery(self, agent: str, made: dict[str, m.MaskShares]) -> m.MaskDelivery:
        senders = {one: shares for one, shares in made.items() if one != agent}
        return m.MaskDelivery(
            run=RUN,
            round=self.number,
            shares={one: shares.shares[agent] for one, shares in senders.items()},
            checks={one: shares.checks[agent] for one, shares in senders.items()},
        )


def device(folder: Path) -> tuple[HandEdge, str]:
    home = folder / "device"
    home.mkdir()
    who = load_or_create(home)
    return joined(home, task=SECURE, identity=who), who.id


def settled(edge: HandEdge, agent: str, others: Others) -> m.MaskRoster:
    """Take the device through the exchange of keys and shares."""
    roster = others.roster(agent, edge.said(m.MaskKeys)[-1])
    edge.say(roster)
    edge.say(others.delivery(agent, roster))
    return roster


def test_an_update_waits_for_its_masks_and_tells_no_samples(tmp_path: Path) -> None:
    edge, me = device(tmp_path)
    others = Others(tmp_path)
    edge.serve(edge.order(1, MODEL), MODEL)
    assert len(edge.said(m.MaskKeys)) == 1
    edge.train(edge.jobs(Train)[-1], UPDATE)
    assert edge.said(m.UpdateOffer) == []
    assert edge.jobs(Mask) == []
    roster = settled(edge, me, others)
    (job,) = edge.jobs(Mask)
    assert len(job.seeds) == 4
    assert job.weight == 7
    masked = b"m" * 300
    Path(job.out).write_bytes(masked)
    edge.take(Masked(job=job.job, digest=digest_of(masked), size=300))
    (offer,) = edge.said(m.UpdateOffer)
    assert (offer.digest, offer.size, offer.first) == (digest_of(masked), 300, masked)
    assert (offer.stats.num_samples, offer.stats.arrivals, offer.note) == (1, 0, "")
    here = bound(Place(RUN, 1, EDGE), SPEC, roster.members)
    check_agreed(me, roster.members[me].identity, offer.agreed, here, roster.members.keys())


def test_a_device_opens_once_and_only_for_enough(tmp_path: Path) -> None:
    edge, me = device(tmp_path)
    others = Others(tmp_path)
    edge.serve(edge.order(1, MODEL), MODEL)
    roster = settled(edge, me, others)
    everybody = (me, *others.members)
    edge.say(m.MaskAsk(run=RUN, round=1, survivors=everybody[:2]))
    assert edge.said(m.MaskOpening) == []
    assert edge.core.counters["masking_small_cohort"] == 1
    ask = others.ask(me, roster, edge.said(m.MaskShares)[-1], *everybody[:3])
    edge.say(replace(ask, agreed={}))
    assert edge.said(m.MaskOpening) == []
    assert edge.core.counters["masking_not_agreed"] == 1
    edge.say(ask)
    edge.say(ask)
    one, again = edge.said(m.MaskOpening)
    assert one == again
    assert one.shares.keys() == set(everybody)
    edge.say(replace(ask, survivors=everybody))
    assert len(edge.said(m.MaskOpening)) == 2
    assert edge.core.counters["masking_second_survivors"] == 1


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_the_trainer_writes_the_masked_update_in_the_place_of_the_plain_one(
    tmp_path: Path, weighting: str
) -> None:
    bench = TrainerBench(tmp_path)
    sets = ("secure_aggregation.minimum_cohort=3", f"rounds.weighting={weighting}")
    bench.opened(demo(*sets), "digits")
    bench.trained()
    plain = bench.update()
    seeds = ((b"a" * 32, 1), (b"b" * 32, -1))
    told = bench.trainer.answer(Mask(job=3, out=str(bench.out), weight=1, seeds=seeds))
    assert isinstance(told, Masked)
    data = bench.out.read_bytes()
    assert (told.digest, told.size) == (digest_of(data), len(data))
    limit = 1 if weighting == "uniform" else bench.task.limits.max_samples
    ring = ring_of(demo(*sets).secure_aggregation, limit)
    manifest = ring.manifest(create(bench.task.model).manifest())
    words = decode_tensors(data, manifest)[MASKED].view(ring.word).copy()
    add_masks(words, [(key, -sign) for key, sign in seeds], ring)
    assert np.array_equal(words, vector_of(plain, 1, ring))
    bench.trainer.close()


def test_an_enrolled_device_masks_among_devices_of_its_site_alone(tmp_path: Path) -> None:
    """An edge cannot be everybody: whom it invents has no certificate."""
    authority = Authority.create(tmp_path / "ca", "hall")
    others = Others(tmp_path)
    (home := tmp_path / "device").mkdir()
    me = load_or_create(home)
    certificate = authority.issue(me.public_bytes, "agent")
    store_credentials(
        home, me, certificate, authority.der, Joined(site="hall", fingerprint="0" * 64)
    )
    for one in others.members.values():
        one.certificate = authority.issue(one.identity, "agent").der
    edge = joined(home, task=SECURE, identity=me)
    edge.serve(edge.order(1, MODEL), MODEL)
    keys = edge.said(m.MaskKeys)[-1]
    assert keys.keys.certificate == certificate.der
    roster = others.roster(me.id, keys)
    victim = next(iter(others.members))
    rogue = Authority.create(tmp_path / "rogue", "hall")
    for wrong in (
        b"",
        b"no certificate",
        rogue.issue(others.members[victim].identity, "agent").der,
        authority.issue(others.members[victim].identity, "edge").der,
        certificate.der,
    ):
        claimed = replace(roster.members[victim], certificate=wrong)
        edge.say(replace(roster, members={**roster.members, victim: claimed}))
    assert edge.core.counters["masking_stranger"] == 5
    assert edge.said(m.MaskShares) == []
    edge.say(roster)
    assert len(edge.said(m.MaskShares)) == 1
