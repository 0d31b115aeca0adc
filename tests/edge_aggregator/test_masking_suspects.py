"""A dealer's word against one holder's: the pair is kept apart, and two such pairs bar a device."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from fedagent_edge.core.masking import RESTING
from fedagent_protocol import messages as m

from .harness import Field
from .test_masking import SPEC, MaskedAgent
from .test_masking_liars import Liar, Lie, field_with, named, outcome_of


def false_share_then_silence(said: m.AnyMessage, _: Liar) -> m.AnyMessage | None:
    """Deal one share that does not open; then the others' answers are just enough, but for it."""
    match said:
        case m.MaskShares():
            return replace(said, shares={**said.shares, max(said.shares): bytes(148)})
        case m.MaskOpening():
            return None
        case _:
            return said


def false_complaint(said: m.AnyMessage, liar: Liar) -> m.AnyMessage:
    """Say that a share which did open does not."""
    if not isinstance(said, m.MaskOpening):
        return said
    victim = min(said.shares.keys() - {liar.id})
    return replace(said, shares={a: share for a, share in said.shares.items() if a != victim})


def liar_among_four(directory: Path, lie: Lie) -> tuple[Field, Liar, list[MaskedAgent]]:
    """Return a field in which three answers are needed, and one may be missing."""
    f, liar, honest = field_with(directory, lie, 4)
    if lie is false_complaint:
        drop_out_at_openings(f, honest[-1])
    return f, liar, honest


def drop_out_at_openings(f: Field, one: MaskedAgent) -> None:
    """Let an honest device lose its link at each opening."""

    def unopened(said: m.AnyMessage, _: Liar) -> m.AnyMessage | None:
        return None if isinstance(said, m.MaskOpening) else said

    f.agents[one.id] = Liar(one.id, key=one.key, samples=one.samples, lie=unopened)
    f.agents[one.id].hello(f)
    f.run_for(0.5)


def play(f: Field, first: int, last: int) -> list[m.RoundReport]:
    reports = []
    for number in range(first, last + 1):
        f.order(number)
        reports.append(f.run_until_report(number))
        f.run_for(1.0)
    return reports


LIES = pytest.mark.parametrize("lie", [false_share_then_silence, false_complaint])


@LIES
def test_one_liar_voids_two_rounds_and_bars_nobody_but_itself(tmp_path: Path, lie: Lie) -> None:
    f, liar, honest = liar_among_four(tmp_path, lie)
    reports = play(f, 1, 8)
    assert 1 <= sum(bool(one.failed) for one in reports) <= 2
    assert f.core.memory.mask_liars == (liar.id,)
    assert "for the second time" in " ".join(named(f, liar.id))
    assert outcome_of(reports[-1], liar.id).reason == "masking_barred"
    assert all(outcome_of(reports[-1], one.id).used for one in honest)


@LIES
def test_an_edge_that_restarts_still_knows_whom_a_liar_contradicted(
    tmp_path: Path, lie: Lie
) -> None:
    f, liar, _ = liar_among_four(tmp_path, lie)
    reports = []
    for number in range(1, 7):
        reports += play(f, number, number)
        f.restart()
        f.run_for(1.0)
    assert sum(bool(one.failed) for one in reports) == 2
    assert f.core.memory.mask_liars == (liar.id,)
    f.core.memory.adopt("f" * 32, "", b"")
    assert not f.core.memory.mask_suspects, "another run, another trust"


def test_suspects_are_told_to_the_operator_and_take_turns(tmp_path: Path) -> None:
    """As long as the liar behaves, nobody can know which of the two it is."""
    f, liar, _ = liar_among_four(tmp_path, false_share_then_silence)
    play(f, 1, 1)
    (pair,) = f.core.memory.mask_suspects
    assert pair.dealer == liar.id
    told = f"{pair.holder[:12]} says that its share does not open; one of the two lies"
    assert told in " ".join(named(f, liar.id))
    assert f.core.counters["masking_suspects"] == 1
    liar.lie = lambda said, _: said
    reports = play(f, 2, 5)
    rested = [one.agent for report in reports for one in report.outcomes if one.reason == RESTING]
    assert rested == [pair.dealer, pair.holder] * 2
    for report, one in zip(reports, rested, strict=True):
        exact_sum_without(report, one)
        waited_ms = report.timing_ms["collect"]
        assert waited_ms < 1000 * SPEC.stage_s, "nobody waits for the keys of who rests"
    assert f.core.memory.mask_liars == ()


def exact_sum_without(report: m.RoundReport, rested: str) -> None:
    assert report.failed == ""
    assert {one.agent for one in report.outcomes if not one.used} == {rested}


def test_two_who_lie_together_have_no_more_others_barred_than_they_are(tmp_path: Path) -> None:
    f, liar, (ally, *honest) = field_with(tmp_path, false_complaint, 9)

    def framing(said: m.AnyMessage, _: Liar) -> m.AnyMessage:
        if not isinstance(said, m.MaskOpening):
            return said
        victim = min(said.shares.keys() - {liar.id, ally.id})
        return replace(said, shares={a: share for a, share in said.shares.items() if a != victim})

    liar.lie = framing
    f.agents[ally.id] = Liar(ally.id, key=ally.key, samples=ally.samples, lie=framing)
    f.agents[ally.id].hello(f)
    for one in honest[-3:]:
        drop_out_at_openings(f, one)
    play(f, 1, 12)
    assert 2 <= f.core.counters["masking_suspects"] <= 4
    barred = set(f.core.memory.mask_liars)
    assert barred & {one.id for one in honest} <= {one.id for one in honest[:2]}
    assert barred
