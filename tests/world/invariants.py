"""What must hold of every run, whoever died, lied, or was not heard in it."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from fedagent_protocol import messages as m
from fedagent_protocol.tensors import locate, tensor_at
from fedagent_testbed.roles import AGENT_PRICE_MICRO

if TYPE_CHECKING:
    from . import Played

PAID = (m.ReceiptStatus.ACCEPTED, m.ReceiptStatus.LATE)


def check(played: "Played", *, ends: bool = True) -> None:
    """Check all of it."""
    try:
        books(played, ends=ends)
        trainings(played)
        receipts(played)
        reports(played)
        aggregates(played)
        assert not played.open_after, played.open_after
    except AssertionError as error:
        error.add_note(f"in the world: {played.plan}")
        raise


def books(played: "Played", *, ends: bool) -> None:
    """Every round and every payment once, books that balance, never over the budget."""
    ending, recipe = played.ending, played.here.coordinator.recipe
    assert ending.balanced, ending.problems
    numbers = [number for number, _ in ending.settled_reports]
    assert len(set(numbers)) == len(numbers), "a round is in the books twice"
    states = {state for _, state in ending.settled_reports}
    assert len(set(ending.paid)) == len(ending.paid), "somebody was paid twice for a round"
    rented = Counter(round_ for round_, _, _ in ending.rents)
    assert set(rented.values()) <= {1}, "a rent was charged twice"
    rent_micro = sum(micro for _, _, micro in ending.rents)
    assert ending.spent_micro == AGENT_PRICE_MICRO * len(ending.paid) + rent_micro
    money = recipe.budget.total_micro
    assert money is not None
    assert ending.spent_micro <= money, "more was spent than there was"
    calls = [number for number, _ in ending.evaluated]
    assert len(set(calls)) == len(calls), "a model was evaluated twice"
    if ends:
        assert states <= {"done", "void"}, "a round has not ended"
        assert ending.rounds_done == recipe.rounds.count or ending.reason == "budget"


def trainings(played: "Played") -> None:
    """Nobody trains for a round whose update it has."""
    assert not played.trainings.twice, f"trained twice: {played.trainings.twice}"
    offered: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in played.wire.said(m.UpdateOffer):
        if not one.message.made_in:
            offered[one.sender, one.message.round].add(one.message.digest)
    liars = {sender for sender, _ in played.wire.lies}
    for (agent, number), digests in offered.items():
        assert len(digests) == 1 or agent in liars, f"{agent} offers {len(digests)} in {number}"


def receipts(played: "Played") -> None:
    """One word on each update: paid or not, and the report keeps it."""
    words: dict[tuple[str, str, int], set[m.ReceiptStatus]] = defaultdict(set)
    for one in played.wire.said(m.Receipt):
        words[one.sender, one.to, one.message.round].add(one.message.status)
    outcomes = {
        (one.sender, outcome.agent, one.message.round): outcome
        for one in played.wire.said(m.RoundReport)
        for outcome in one.message.outcomes
    }
    liars = {sender for sender, _ in played.wire.lies}
    for key, told in words.items():
        final = told - {m.ReceiptStatus.EXPIRED}
        assert len(final) <= 1, f"{key} was told {final}"
        if final & set(PAID) and key in outcomes and key[0] not in liars:
            assert outcomes[key].valid, f"{key} was told {final}, and reported as not valid"


def reports(played: "Played") -> None:
    """An edge says one thing of a round, however often; the ledger pays what it said."""
    said: dict[tuple[str, int], set[object]] = defaultdict(set)
    work: dict[tuple[int, str], str] = {}
    for one in played.wire.said(m.RoundReport):
        report = one.message
        content = (report.model, report.used, report.weight)
        outcomes = tuple(sorted((o.agent, o.valid, o.used, o.in_time) for o in report.outcomes))
        said[one.sender, report.round].add((content, outcomes))
        for o in report.outcomes:
            if o.valid:
                assert o.proof is not None, f"{o.agent} has no proof of round {report.round}"
                work[report.round, o.agent] = o.proof.update.hex()
    for key, versions in said.items():
        assert len(versions) == 1, f"{key} ended in {len(versions)} ways"
    of_name = {name: agent for agent, name in played.here.names.items()}
    paid = {(number, of_name[name]) for number, name in played.ending.paid}
    assert paid <= set(work), f"paid without a report: {paid - set(work)}"
    offered = {(one.sender, one.message.digest) for one in played.wire.said(m.UpdateOffer)}
    for number, agent in paid:
        assert (agent, work[number, agent]) in offered, f"{agent} was paid for no work of {number}"
    sold = Counter((agent, work[number, agent]) for number, agent in paid)
    assert set(sold.values()) <= {1}, "an update was paid twice"


def aggregates(played: "Played") -> None:
    """Every model that an edge reports is its base and the weighted mean of what it used."""
    wire, checked = played.wire, 0
    bases = {(one.sender, one.message.round): one.message.model for one in wire.said(m.TrainOrder)}
    for one in wire.said(m.RoundReport):
        report = one.message
        base, after = wire.blob(bases.get((one.sender, report.round), "")), wire.blob(report.model)
        if not report.model or base is None or after is None:
            continue
        used = [outcome for outcome in report.outcomes if outcome.used]
        bodies = [wire.blob(o.proof.update.hex()) if o.proof else None for o in used]
        updates = [body for body in bodies if body is not None]
        if len(updates) != len(used) or any(o.made_in for o in used):
            continue
        total = sum(outcome.weight for outcome in used)
        assert report.used == len(used)
        assert np.isclose(report.weight, total)
        mean = sum(o.weight / total * flat(body) for o, body in zip(used, updates, strict=True))
        assert np.allclose(flat(after), flat(base) + mean, atol=2e-6), (
            f"{one.sender} says {report.model[:8]} of round {report.round}"
        )
        checked += 1
    played.recomputed = checked


def flat(body: bytes) -> np.ndarray:
    """Return all numbers of a model."""
    return np.concatenate(
        [np.asarray(tensor_at(body, item), np.float64).ravel() for item in locate(body)]
    )
