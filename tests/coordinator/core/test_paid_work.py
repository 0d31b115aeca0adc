"""Late work is paid once, whatever edges report, and however often the coordinator restarts."""

from hypothesis import given
from hypothesis import strategies as st

from fedagent_coordinator.core.paid_work import PaidWork
from fedagent_protocol.messages import Outcome, OutcomeStatus, RoundReport

EPOCH = "1" * 32
AGENTS = st.sampled_from(["a", "b", "c"])
CLAIMS = st.lists(st.tuples(AGENTS, st.integers(0, 12), st.booleans()), max_size=3)


def outcome(agent: str, made_in: int, *, valid: bool = True) -> Outcome:
    return Outcome(agent=agent, status=OutcomeStatus.ARRIVED, valid=valid, made_in=made_in)


@given(
    rounds=st.lists(CLAIMS, min_size=1, max_size=12),
    late_rounds=st.integers(0, 5),
    restarts=st.sets(st.integers(1, 12)),
)
def test_no_work_is_paid_twice(
    rounds: list[list[tuple[str, int, bool]]], late_rounds: int, restarts: set[int]
) -> None:
    book: list[tuple[int, tuple[str, int]]] = []
    paid = PaidWork(late_rounds)
    for number, said in enumerate(rounds, start=1):
        if number in restarts:
            paid = PaidWork(late_rounds, {w for at, w in book if at >= number - late_rounds})
        taken: dict[str, Outcome] = {}
        for agent, made_in, valid in said:
            one = outcome(agent, made_in, valid=valid)
            if not paid.refuses(one, number):
                taken.setdefault(agent, one)  # one reservation of an agent a round
        report = RoundReport(run=EPOCH, round=number, epoch=EPOCH, outcomes=tuple(taken.values()))
        paid.settled(number, [report])
        book += [(number, (a, one.made_in or number)) for a, one in taken.items() if one.valid]
        assert len(paid.known) <= 3 * max(1, late_rounds)
    works = [work for _, work in book]
    assert len(works) == len(set(works))
    assert all(0 <= at - begun <= late_rounds for at, (_, begun) in book)


def test_work_of_the_round_itself_is_always_taken() -> None:
    paid = PaidWork(5, {("a", 4), ("a", 6)})
    assert not paid.refuses(outcome("a", 0), 6)
    assert paid.refuses(outcome("a", 4), 6)
    assert not paid.refuses(outcome("a", 5), 6)
    assert paid.refuses(outcome("a", 6), 6), "it is no earlier round"
    assert paid.refuses(outcome("a", 7), 6)
    assert PaidWork(0).refuses(outcome("a", 5), 6)
