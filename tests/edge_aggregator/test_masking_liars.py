"""An enrolled device that lies in a masked round: the others have their sum, and it is named."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from msgspec.structs import replace

from fedagent_node.data_dir import load_or_create
from fedagent_node.site.authority import Authority
from fedagent_node.site.credentials import Joined, store_credentials
from fedagent_protocol import messages as m
from fedagent_task.secure_aggregation.keys import signed_bytes

from .harness import Field
from .test_masking import MaskedAgent, devices, exact, secure_field

Lie = Callable[[m.AnyMessage, "Liar"], m.AnyMessage | None]


@dataclass
class Liar(MaskedAgent):
    """Sends something else in the place of what it should; None: nothing, this once."""

    lie: Lie = lambda said, _: said

    def _say(self, message: m.AnyMessage, f: Field) -> None:
        if (said := self.lie(message, self)) is not None:
            super()._say(said, f)


def weak_key(said: m.AnyMessage, liar: Liar) -> m.AnyMessage:
    if not isinstance(said, m.MaskKeys):
        return said
    assert liar.member is not None
    signature = liar.key.sign(signed_bytes(liar.member.place, said.keys.mask, bytes(32)))
    return replace(said, keys=replace(said.keys, seal=bytes(32), signature=signature))


def false_answer(said: m.AnyMessage, _: Liar) -> m.AnyMessage:
    return (
        replace(said, shares=dict.fromkeys(said.shares, bytes(66)))
        if isinstance(said, m.MaskOpening)
        else said
    )


def rubbish_for_all(said: m.AnyMessage, _: Liar) -> m.AnyMessage:
    return (
        replace(said, shares=dict.fromkeys(said.shares, bytes(148)))
        if isinstance(said, m.MaskShares)
        else said
    )


def field_with(directory: Path, lie: Lie, count: int = 6) -> tuple[Field, Liar, list[MaskedAgent]]:
    f = secure_field(directory, count)
    # Answers come in the order of ids: a lie that comes after enough of them is not looked at.
    first, *honest = sorted(devices(f), key=lambda one: one.id)
    liar = Liar(first.id, key=first.key, samples=first.samples, lie=lie)
    f.agents[first.id] = liar
    liar.hello(f)
    f.run_for(0.5)
    return f, liar, honest


def outcome_of(report: m.RoundReport, agent: str) -> m.Outcome:
    (found,) = [one for one in report.outcomes if one.agent == agent]
    return found


def named(f: Field, agent: str) -> list[str]:
    """Return what the operator is told of a device."""
    return [note.text for note in f.notes if note.peer == agent]


def test_a_weak_key_costs_its_device_the_round_and_nobody_else(tmp_path: Path) -> None:
    f, liar, honest = field_with(tmp_path, weak_key)
    f.order(1)
    report = f.run_until_report(1)
    exact(f, report, honest)
    assert (outcome_of(report, liar.id).valid, outcome_of(report, liar.id).reason) == (
        False,
        "masking_weak_key",
    )
    assert f.core.counters["masking_weak_key"] >= 1
    assert "MaskKeys: a key of low order" in named(f, liar.id)


def test_who_answers_with_false_shares_is_not_paid_and_in_no_later_masks(tmp_path: Path) -> None:
    f, liar, honest = field_with(tmp_path, false_answer)
    f.order(1)
    report = f.run_until_report(1)
    assert report.failed == ""
    told = outcome_of(report, liar.id)
    assert (told.valid, told.used, told.proof) == (False, False, None)
    assert (told.status, told.reason) == (m.OutcomeStatus.REJECTED, "masking_false_shares")
    assert all(outcome_of(report, one.id).valid for one in honest)
    assert f.core.counters["masking_false_shares"] == 1
    assert "it answered with false shares; it is in no masks" in " ".join(named(f, liar.id))
    f.run_for(1.0)
    f.order(2)
    second = f.run_until_report(2)
    exact_without(second, liar, honest)
    assert outcome_of(second, liar.id).reason == "masking_barred"


def exact_without(report: m.RoundReport, liar: MaskedAgent, honest: list[MaskedAgent]) -> None:
    assert report.failed == ""
    assert {one.agent for one in report.outcomes if one.used} == {one.id for one in honest}
    assert not outcome_of(report, liar.id).valid


def test_who_deals_rubbish_has_one_void_round_and_is_named(tmp_path: Path) -> None:
    f, liar, honest = field_with(tmp_path, rubbish_for_all)
    f.order(1)
    report = f.run_until_report(1)
    assert f"{liar.id[:12]} gave out shares that do not open" in report.failed
    assert {one.agent for one in report.outcomes if one.valid} == {one.id for one in honest}
    f.run_for(1.0)
    f.order(2)
    exact(f, f.run_until_report(2), honest)
    assert f.core.counters["masking_barred"] >= 1


def test_an_edge_that_restarts_still_knows_who_lied(tmp_path: Path) -> None:
    f, liar, honest = field_with(tmp_path, rubbish_for_all)
    f.order(1)
    f.run_until_report(1)
    f.run_for(1.0)
    f.restart()
    f.run_for(1.0)
    f.order(2)
    exact(f, f.run_until_report(2), honest)
    assert list(f.core.memory.mask_liars) == [liar.id]
    f.core.memory.adopt("f" * 32, "", b"")
    assert not list(f.core.memory.mask_liars), "another run, another trust"


def test_an_update_that_names_no_cohort_is_refused_and_the_others_are_exact(
    tmp_path: Path,
) -> None:
    """Nobody would open for survivors of whom one has not signed."""
    f = secure_field(tmp_path, 5)
    first = devices(f)[0]
    first.drops = "update"
    for one in devices(f)[1:]:
        one.work_s = 2.0
    f.order(1)
    f.run_for(1.0)
    first.silent, first.overrides = False, {"agreed": bytes(64)}
    first.body = devices(f)[1].key.public_key().public_bytes_raw() * 20
    f.to_edge(first.id, first.make_offer(first.orders[-1]))
    report = f.run_until_report(1)
    exact(f, report, devices(f)[1:])
    assert first.receipts[-1].reason == "masking_not_agreed"


@pytest.mark.parametrize("shown", ["none", "another's", "its own"])
def test_an_edge_of_a_site_lets_members_alone_into_the_masks(tmp_path: Path, shown: str) -> None:
    authority = Authority.create(tmp_path / "ca", "hall")
    f = secure_field(tmp_path / "edge", 6)
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
