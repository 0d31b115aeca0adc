"""What the coordinator of a site signs for devices goes to every edge, and anew before it ends."""

import hashlib
from typing import TypeVar

from fedagent_coordinator.core import effects as fx
from fedagent_protocol import messages as m
from fedagent_protocol.signed import Assigning, Calling, Vouching
from tests.fakes.engine_field import Field, settings, toy_edges

S = TypeVar("S")


class Word(Vouching):
    """Vouches with a count, so that each word is another one."""

    words = 0

    def task(self, run: str, task: str) -> m.TaskClaim | None:
        self.words += 1
        return m.TaskClaim(certificate=b"der", until_s=self.words, signature=bytes(64))

    def sign(self, made: Assigning | Calling) -> bytes:
        return hashlib.sha512(repr(made).encode()).digest()


def said(field: Field, kind: type[S]) -> list[tuple[str, S]]:
    return [(edge, one) for edge, one in field.sent if isinstance(one, kind)]


def test_orders_calls_and_the_task_are_signed_and_a_word_that_is_renewed_reaches_every_edge() -> (
    None
):
    given = settings(count=2, wait_edges=2, wait_agents=6, opinions=m.OpinionMode.REPORT)
    field = Field(toy_edges(2), given)
    word = field.engine.run.vouching = Word()
    field.run()
    run, task = given.run, given.task
    orders = said(field, m.RoundOrder)
    assert {order.round for _, order in orders} == {1, 2}
    for edge, order in orders:
        for one in order.assignments:
            assert one.assigned == word.sign(Assigning(run, order.round, edge, one.agent, task))
    calls = said(field, m.OpinionOpen)
    assert {call.round for _, call in calls} == {1, 2}
    for _, call in calls:
        assert call.signed == word.sign(
            Calling(run, call.round, task, call.model, call.mode, call.slot)
        )
    before = said(field, m.EdgeWelcome)
    field.perform(field.engine.receive(fx.WordRenewed(), field.kernel.now))
    after = said(field, m.EdgeWelcome)[len(before) :]
    assert {edge for edge, _ in after} == {"edge-0", "edge-1"}
    assert not [one for _, one in after if one.claim in [old.claim for _, old in before]]
