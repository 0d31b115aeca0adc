"""What must hold of every run, whoever died, lied, or was not heard in it."""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np

from fedagent_agent.books import Books
from fedagent_coordinator.books.read import Reader, open_reader
from fedagent_protocol import messages as m
from fedagent_protocol.tensors import locate, tensor_at
from fedagent_testbed.roles import AGENT_PRICE_MICRO

from .kinds import RELEASES

if TYPE_CHECKING:
    from . import Played

PAID = (m.ReceiptStatus.ACCEPTED, m.ReceiptStatus.LATE)


def check(played: "Played", *, ends: bool = True) -> None:
    """Check all of it."""
    try:
        books(played, ends=ends)
        with open_reader(played.here.coordinator.directory) as read:
            ledger(played, read, ends=ends)
            orders(played, read)
            opinions(played, read)
        trainings(played)
        receipts(played)
        reports(played)
        if played.kind != "private":  # its edges add noise
            aggregates(played)
        assert not played.open_after, played.open_after
    except AssertionError as error:
        error.add_note(f"in the world: {played.plan}")
        raise


def books(played: "Played", *, ends: bool) -> None:
    """The run ends as it should; books that balance, never over the budget."""
    ending, recipe = played.ending, played.here.coordinator.recipe
    assert ending.balanced, ending.problems
    rent_micro = sum(micro for _, _, micro in ending.rents)
    assert ending.spent_micro == AGENT_PRICE_MICRO * len(ending.paid) + rent_micro
    money = recipe.budget.total_micro
    assert money is not None
    assert ending.spent_micro <= money, "more was spent than there was"
    done = [number for number, state in ending.settled_reports if state == "done"]
    assert {number for number, _, _ in ending.rents} <= set(done), "rent for a void round"
    if not ends:
        return
    assert {state for _, state in ending.settled_reports} <= {"done", "void"}, "one has not ended"
    if ending.reason == "budget":
        rents = [edge.rent_micro for edge in played.here.edges.values()]
        assert ending.spent_micro + min(rents) + AGENT_PRICE_MICRO > money, "it could have paid"
    else:
        assert (ending.reason or "rounds", ending.rounds_done) == ("rounds", recipe.rounds.count)


def ledger(played: "Played", read: Reader, *, ends: bool) -> None:
    """What is reserved ends once, paid or not; who is paid for a round has delivered in it."""
    run = read.run().run_id
    steps: dict[tuple[int | None, int | None], list[tuple[str, int]]] = defaultdict(list)
    edges: Counter[tuple[int | None, int | None]] = Counter()
    for entry in reversed(read.ledger.show(run_id=run, limit=-1)):
        if entry.kind in ("reserve", "settle", "void") and entry.edge is not None:
            steps[entry.round, entry.client].append((entry.kind, entry.amount_micro))
        if entry.kind == "reserve" and entry.client is not None:
            edges[entry.round, entry.edge] += entry.amount_micro
    limit = played.here.coordinator.recipe.budget.per_edge_micro
    assert limit is not None
    assert max(edges.values(), default=0) <= limit, "an edge reserved more than its budget"
    for what, found in steps.items():
        kinds = [kind for kind, _ in found]
        assert kinds[:1] == ["reserve"], f"{what} ended before it was reserved"
        assert len(kinds) <= 2, f"{what} ended twice: {kinds}"
        assert kinds[1:] in (["settle"], ["void"]) or not ends, f"{what} has not ended"
        assert len({amount for _, amount in found}) == 1, f"{what} ended with another amount"
    settled = {what for what, found in steps.items() if found[-1][0] == "settle"}
    rows = read.outcomes(run)
    delivered = {(row.round, row.client) for row in rows if row.status in ("arrived", "late")}
    assert {what for what in settled if what[1] is not None} == {
        (row.round, row.client) for row in rows if row.paid_micro
    }, "the ledger and the outcomes name others"
    assert {(row.round, row.client) for row in rows if row.paid_micro} <= delivered
    void = {number for number, state in played.ending.settled_reports if state == "void"}
    assert not {number for number, _ in settled} & void, "a void round paid somebody"


def orders(played: "Played", read: Reader) -> None:
    """Nothing is ordered before it is reserved, nor after its round has ended."""
    coordinator = played.here.coordinator
    if coordinator.kernel is not played.here.kernel:
        return  # its clock is another
    spans = {
        row.round: (row.opened_ms / 1000, (row.closed_ms or 2**62) / 1000)
        for row in read.rounds(read.run().run_id)
    }
    for one in played.wire.said(m.RoundOrder):
        opened, closed = spans[one.message.round]
        assert opened - 0.001 <= one.at <= closed + 0.001, (
            f"round {one.message.round} was ordered at {one.at}, not in {opened} to {closed}"
        )
    asked: dict[tuple[str, int], set[object]] = defaultdict(set)
    for one in played.wire.said(m.RoundOrder):
        asked[one.to, one.message.round].add((one.message.task, one.message.assignments))
    assert {len(found) for found in asked.values()} <= {1}, "a round was ordered in two ways"


def opinions(played: "Played", read: Reader) -> None:
    """Each due model is evaluated once; an opinion or an update is charged before it leaves."""
    ending, here, run = played.ending, played.here, read.run().run_id
    calls = [number for number, _ in ending.evaluated]
    assert len(set(calls)) == len(calls), "a model was evaluated twice"
    done = [number for number, state in ending.settled_reports if state == "done"]
    if played.kind in ("evaluated", "noisy") and ending.reason:
        assert calls == [0, *done], "a model was not evaluated"
    said: dict[tuple[str, int], set[float]] = defaultdict(set)
    for one in played.wire.said(m.Opinion):
        if one.message.samples:
            said[one.sender, one.message.round].add(one.message.score)
    assert {len(scores) for scores in said.values()} <= {1}, "two opinions in one round"
    left = Counter(row.agent for row in read.outcomes(run) if row.status in ("arrived", "late"))
    for agent in here.agents.values() if played.kind in ("private", "noisy") else ():
        if played.kind == "private":
            charged = Books(agent.directory).survived().releases.get(run, 0)
            assert left[agent.id] <= charged <= RELEASES, f"{agent.name} released more"
        else:
            spent = Books(agent.directory).opinions().spent[run]
            gave = sum(sender == agent.id for sender, _ in said)
            assert gave <= spent <= len(calls), f"{agent.name} gave {gave} and charged {spent}"


def trainings(played: "Played") -> None:
    """Nobody trains for a round whose update it has, nor twice while it lives."""
    made = played.trainings
    assert not made.twice, f"trained twice: {made.twice}"
    for (name, number), count in Counter(made.made).items():
        assert count <= 1 + played.died[name], f"{name} trained {count} times for {number}"
    offered: dict[tuple[str, int], set[str]] = defaultdict(set)
    for one in played.wire.said(m.UpdateOffer):
        if not one.message.made_in:
            offered[one.sender, one.message.round].add(one.message.digest)
    for (agent, number), digests in offered.items():
        assert len(digests) == 1 or agent in played.wire.liars, f"{agent} has two of {number}"


def receipts(played: "Played") -> None:
    """One word on each update, which the report keeps; what is promised is paid, or void."""
    words: dict[tuple[str, str, int], set[m.ReceiptStatus]] = defaultdict(set)
    for one in played.wire.said(m.Receipt):
        words[one.sender, one.to, one.message.round].add(one.message.status)
    for order in played.wire.said(m.TrainOrder):
        if (said := order.message.receipt) is not None:
            words[order.sender, order.to, said.round].add(said.status)
    paid = {(name, number) for number, name in played.ending.paid}
    outcomes = {
        (one.sender, outcome.agent, one.message.round): outcome
        for one in played.wire.said(m.RoundReport)
        for outcome in one.message.outcomes
    }
    for key, told in words.items():
        final = told - {m.ReceiptStatus.EXPIRED, m.ReceiptStatus.VOID}
        assert len(final) <= 1, f"{key} was told {final}"
        if final & set(PAID) and not played.wire.liars:
            was = (played.here.names[key[1]], key[2]) in paid
            void = m.ReceiptStatus.VOID in told or key in played.untold
            assert was is not void, f"{key} is paid: {was}, told {told}"
        if final & set(PAID) and key in outcomes and key[0] not in played.wire.liars:
            assert outcomes[key].valid, f"{key} was told {final}, and reported as not valid"


def reports(played: "Played") -> None:
    """An edge says one thing of a round, however often; the ledger pays what it said."""
    said: dict[tuple[str, int], set[object]] = defaultdict(set)
    work: dict[tuple[int, str], str] = {}
    taken = {
        (one.to, one.message.round)
        for one in played.wire.said(m.ReportReceipt)
        if not one.message.too_late
    }
    due: set[tuple[int, str]] = set()
    for one in played.wire.said(m.RoundReport):
        report = one.message
        content = (report.model, report.used, report.weight)
        outcomes = tuple(sorted((o.agent, o.valid, o.used, o.in_time) for o in report.outcomes))
        said[one.sender, report.round].add((content, outcomes))
        for o in report.outcomes:
            if o.valid:
                assert o.proof is not None, f"{o.agent} has no proof of round {report.round}"
                work[report.round, o.agent] = o.proof.update.hex()
                if (one.sender, report.round) in taken:
                    due.add((report.round, o.agent))
    for key, versions in said.items():
        assert len(versions) == 1, f"{key} ended in {len(versions)} ways"
    of_name = {name: agent for agent, name in played.here.names.items()}
    paid = {(number, of_name[name]) for number, name in played.ending.paid}
    assert paid <= set(work), f"paid without a report: {paid - set(work)}"
    if not played.wire.liars:
        assert due <= paid, f"reported in time and not paid: {due - paid}"
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
