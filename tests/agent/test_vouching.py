"""A device of a site computes on no task, in no run, that its coordinator has not signed."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedagent_agent.core.tasks import REFUSED_S
from fedagent_agent.core.vouching import HINTS, UNASSIGNED
from fedagent_agent.site import LONGEST_S, SiteVoucher
from fedagent_agent.trainer.frames import Evaluate, Open, Train
from fedagent_coordinator.site.standing import CLAIM_S, SiteWord
from fedagent_node.data_dir import load_or_create
from fedagent_node.site.certificates import Role
from fedagent_node.site.membership import Membership
from fedagent_protocol import messages as m
from fedagent_protocol.signed import Assigning, Calling
from fedagent_task.recipe.spec import PrivacySpec, SecureAggregationSpec, TaskSpec
from fedagent_task.recipe.text import task_bytes, task_digest
from tests.fakes.hand_edge import (
    CHUNK,
    EDGE,
    LINK,
    OTHER,
    REAL,
    RUN,
    SITE,
    HandEdge,
    Outward,
    call_of,
    joined,
    model_of,
    order_of,
)
from tests.fakes.site import Members

MODEL = model_of(2000)
PRIVATE = structs.replace(
    REAL,
    privacy=PrivacySpec(mode="central", epsilon=8, delta=1e-5, clip=1, releases=60),
    secure_aggregation=SecureAggregationSpec(minimum_cohort=5),
)
"""The task of the run; `REAL` is the same without masks and noise."""
OTHER_RUN = "2" * 32


@dataclass
class Link:
    """A link of a site, or one that anybody may be on."""

    certified: bool = True


class Site:
    """A device of a site, and two of its edges, each of which hands out what it likes."""

    def __init__(self, folder: Path) -> None:
        self.members = Members(folder)
        self.boss = self.members.member("boss", "coordinator")
        self.link = Link()
        self.members.member("device", "agent")
        self.boot()

    def boot(self) -> None:
        folder = self.members.folder / "device"
        member = Membership.of(folder)
        assert member is not None
        member.asked = lambda link: link == LINK and self.link.certified
        self.me, self.member = load_or_create(folder), member
        self.edge: HandEdge = joined(
            folder,
            OTHER,
            task=PRIVATE,
            identity=self.me,
            voucher=SiteVoucher(SITE, lambda: member),
        )

    def word(
        self,
        task: TaskSpec = PRIVATE,
        *,
        run: str = RUN,
        site: str = SITE,
        by: str = "boss",
        shown: Membership | None = None,
    ) -> m.TaskClaim:
        """Return somebody's word on a task, with the coordinator's certificate if none is given."""
        der = (shown or self.boss).credentials.certificate.der
        found = SiteWord(load_or_create(self.members.folder / by), site, lambda: der)
        claim = found.task(run, task_digest(task_bytes(task)))
        assert claim is not None
        return claim

    def assigned(self, order: m.TrainOrder, *, by: str = "boss", **fields: object) -> bytes:
        """Return somebody's signature that the device trains in a round, at `EDGE` if not said."""
        facts = {"run": order.run, "round": order.round, "edge": EDGE, "agent": self.me.id}
        made = Assigning(**{**facts, "task": order.task, **fields})  # type: ignore[arg-type]
        return SiteWord(load_or_create(self.members.folder / by), SITE, bytes).sign(made)

    def called(self, call: m.OpinionCall, **fields: object) -> m.OpinionCall:
        """Return a call with the coordinator's signature, of this call or of another one."""
        made = Calling(call.run, call.round, call.task, call.model, call.mode, call.slot)
        made = made._replace(**fields)  # type: ignore[arg-type]  # by name
        word = SiteWord(load_or_create(self.members.folder / "boss"), SITE, bytes)
        return structs.replace(call, signed=word.sign(made))

    def serve(
        self, out: list[Outward], task: TaskSpec, claim: m.TaskClaim | None, **at: Any
    ) -> None:
        """Be an edge that hands out a task, with this word on it, and the model."""
        self.edge.serve(out, MODEL, task=task, claim=claim, **at)

    def say(
        self,
        message: m.TrainOrder | m.OpinionCall,
        task: TaskSpec,
        claim: m.TaskClaim | None,
        *,
        edge: str = EDGE,
        run: str = RUN,
    ) -> None:
        """Order or call, again once the device has what it asked for."""
        out = self.edge.say(message, edge=edge)
        self.serve(out, task, claim, edge=edge, run=run)
        if self.edge.said(m.TaskNeed, out):
            self.serve(self.edge.say(message, edge=edge), task, claim, edge=edge, run=run)

    def order(
        self,
        number: int,
        task: TaskSpec,
        claim: m.TaskClaim | None,
        *,
        edge: str = EDGE,
        run: str = RUN,
        assigned: bytes | None = None,
    ) -> None:
        """Order a round that the coordinator has assigned, unless another signature is given."""
        order = structs.replace(order_of(task, number, MODEL, CHUNK), run=run)
        signed = self.assigned(order, edge=edge) if assigned is None else assigned
        self.say(structs.replace(order, assigned=signed), task, claim, edge=edge, run=run)

    def refused(self) -> dict[str, int]:
        counted = self.edge.core.counters.items()
        return {name: n for name, n in counted if name.startswith("task_refused_")}


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_the_run_s_own_task_is_taken_and_its_word_is_asked_for_once(site: Site) -> None:
    site.order(1, REAL, site.word(REAL))
    assert [job.round for job in site.edge.jobs(Train)] == [1]
    site.edge.train(site.edge.jobs(Train)[-1], model_of(2000, 3))
    site.order(2, REAL, None)
    assert [job.round for job in site.edge.jobs(Train)] == [1, 2]
    assert len(site.edge.said(m.TaskNeed)) == 1
    site.order(3, REAL, None, edge=OTHER)
    assert [need.round for need in site.edge.said(m.TaskNeed)] == [1]


def test_an_edge_strips_no_masks_and_no_noise_off_a_run(site: Site) -> None:
    """It orders, in the run and the round, a task of its own: the same without either."""
    site.order(1, PRIVATE, site.word())
    assert len(site.edge.said(m.MaskKeys)) == 1
    for claim in (None, site.word(), site.word(REAL, by="other"), site.word(REAL, run=OTHER_RUN)):
        site.order(2, REAL, claim, edge=OTHER)
        site.edge.later(REFUSED_S + 1)
    cheap = structs.replace(PRIVATE, privacy=structs.replace(PRIVATE.privacy, epsilon=1e6))
    site.order(2, cheap, site.word(), edge=OTHER)
    assert [job.round for job in site.edge.jobs(Train)] == [1], "the coordinator's own alone"
    assert not site.edge.said(m.UpdateOffer)
    assert not (site.members.folder / "device" / "privacy.json").exists()


JUDGED = structs.replace(
    REAL,
    data=structs.replace(REAL.data, standardize=True),
    opinions=structs.replace(REAL.opinions, mode="report"),
)


@pytest.mark.parametrize("mode", [m.OpinionMode.REPORT, m.OpinionMode.MOMENTS])
def test_no_samples_are_looked_at_for_a_task_that_nobody_signed(
    site: Site, mode: m.OpinionMode
) -> None:
    call = site.called(call_of(JUDGED, 1, MODEL, CHUNK, until_ms=60_000, mode=mode))
    for claim in (None, site.word()):
        site.say(call, JUDGED, claim, edge=OTHER)
        site.edge.later(REFUSED_S + 1)
    assert not site.edge.jobs(Open)
    site.say(call, JUDGED, site.word(JUDGED), edge=OTHER)
    assert len(site.edge.jobs(Evaluate)) == 1


@pytest.mark.parametrize(
    "change",
    [{"model": "b" * 64}, {"mode": m.OpinionMode.MOMENTS}],
    ids=str,
)
def test_an_edge_makes_no_call_of_its_own(site: Site, change: dict[str, object]) -> None:
    """It has the word on the task, and a signature of another call."""
    call, word = call_of(JUDGED, 1, MODEL, CHUNK, until_ms=60_000), site.word(JUDGED)
    site.say(site.called(call, **change), JUDGED, word, edge=OTHER)
    site.say(call, JUDGED, word, edge=OTHER)
    assert not site.edge.jobs(Evaluate)
    assert site.edge.core.counters["call_unsigned"] == 2
    assert [UNASSIGNED in warning.text for warning in site.edge.warned] == [True]
    site.say(site.called(call), JUDGED, word)
    assert len(site.edge.jobs(Evaluate)) == 1


@pytest.mark.parametrize("change", [{"edge": OTHER}, {"agent": "f" * 40}, {"round": 2}], ids=str)
def test_an_assignment_of_another_device_edge_or_round_is_none(
    site: Site, change: dict[str, object]
) -> None:
    order = order_of(REAL, 1, MODEL, CHUNK)
    lie = site.assigned(order, **change)  # type: ignore[arg-type]  # by test
    site.order(1, REAL, site.word(REAL), assigned=lie)
    assert not site.edge.jobs(Train)
    site.order(1, REAL, None)
    assert [job.round for job in site.edge.jobs(Train)] == [1]


def test_a_task_that_an_edge_names_is_opened_only_with_the_coordinator_s_word(site: Site) -> None:
    name = task_digest(task_bytes(REAL))
    hall = m.EdgeBeacon(run=RUN, edge=OTHER, task=name)
    site.serve(site.edge.say(hall, edge=OTHER), REAL, None, edge=OTHER)
    assert len(site.edge.said(m.TaskNeed)) == 1
    assert not site.edge.jobs(Open)
    assert site.edge.said(m.ContextReport)[-1].available, "it waits for no more of it"
    site.serve(site.edge.say(m.EdgeBeacon(run=RUN, edge=EDGE, task=name)), REAL, site.word(REAL))
    assert len(site.edge.jobs(Open)) == 1
    site.order(1, REAL, None)
    assert len(site.edge.said(m.TaskNeed)) == 2


def signers(site: Site) -> dict[str, m.TaskClaim]:
    """Return a word that is refused, by why it is."""

    def member(name: str, role: Role = "coordinator", **fields: float) -> Membership:
        return site.members.member(name, role, **fields)

    gone, old = member("gone"), member("old", days=1.0, now=time.time() - 1e6)
    foreign = Members(site.members.folder / "elsewhere").member("rival", "coordinator")
    site.members.revoke("device", gone)
    site.boot()
    return {
        "wrong_role": site.word(REAL, by="evil", shown=member("evil", "edge")),
        "revoked": site.word(REAL, by="gone", shown=gone),
        "expired": site.word(REAL, by="old", shown=old),
        "no_certificate": site.word(REAL, by="rival", shown=foreign),
        "bad_signature": site.word(REAL, by="evil"),
    }


def test_what_is_refused_is_counted_and_said_once_with_its_mend(site: Site) -> None:
    for why, claim in signers(site).items():
        site.boot()
        for _ in range(3):
            site.order(1, REAL, claim)
            site.edge.later(REFUSED_S + 1)
        assert site.refused() == {f"task_refused_{why}": 3}
        assert [HINTS[why] in warning.text for warning in site.edge.warned] == [True]
    assert HINTS.keys() == {*signers(site), "unsigned"}


def test_a_word_ends_and_one_that_was_good_is_asked_for_again(site: Site) -> None:
    word = site.word(REAL)
    site.order(1, REAL, word)
    site.edge.train(site.edge.jobs(Train)[-1], model_of(2000, 3))
    site.edge.now += LONGEST_S + 1
    site.member._answered = time.time() + CLAIM_S + 1.0, time.monotonic()
    site.edge.join()
    site.order(2, REAL, word)
    assert len(site.edge.jobs(Train)) == 1
    assert site.refused() == {"task_refused_expired": 1}
    assert site.member._wanted, "its clock or the coordinator's was set: it asks which time it is"


def test_on_links_without_certificates_nothing_is_asked_for(site: Site) -> None:
    site.link.certified = False
    site.order(1, REAL, None, assigned=b"")
    assert len(site.edge.jobs(Train)) == 1
    site.link.certified = True
    site.edge.train(site.edge.jobs(Train)[-1], model_of(2000, 3))
    site.order(2, REAL, None)
    assert len(site.edge.jobs(Train)) == 1, "what was believed there is not believed here"


def test_an_edge_takes_no_device_away_from_another(site: Site) -> None:
    """It orders round after round that the coordinator has not assigned to it."""
    site.order(1, REAL, site.word(REAL))
    for number in (2, 3, 2**20):
        site.order(number, REAL, site.word(REAL), edge=OTHER, assigned=b"")
    refused = [(said.round, said.reason) for said in site.edge.said(m.Decline)]
    assert refused == [(number, m.DeclineReason.UNSIGNED) for number in (2, 3, 2**20)]
    assert [UNASSIGNED in warning.text for warning in site.edge.warned] == [True]
    assert site.edge.core.counters["order_unsigned"] == 3
    site.edge.train(site.edge.jobs(Train)[-1], model_of(2000, 3))
    site.order(2, REAL, None)
    assert [offer.round for offer in site.edge.said(m.UpdateOffer)] == [1]
    assert [job.round for job in site.edge.jobs(Train)] == [1, 2]
