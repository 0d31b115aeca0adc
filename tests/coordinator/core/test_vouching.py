"""What the coordinator of a site signs for devices goes to every edge, and anew before it ends."""

from fedagent_coordinator.core import effects as fx
from fedagent_protocol import messages as m
from fedagent_protocol.signed import Assigning, Calling, Vouching
from tests.fakes.engine_field import Field, settings, toy_edges


class Word(Vouching):
    """Vouches with a count, so that each word is another one."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        self.made: list[Assigning] = []
        self.calls: list[Calling] = []

    def task(self, run: str, task: str) -> m.TaskClaim | None:
        self.said.append((run, task))
        return m.TaskClaim(certificate=b"der", until_s=len(self.said), signature=bytes(64))

    def sign(self, made: Assigning | Calling) -> bytes:
        if isinstance(made, Assigning):
            self.made.append(made)
            return made.agent.encode()[:64]
        self.calls.append(made)
        return f"{made.round} {made.mode}".encode()


def welcomes(field: Field) -> dict[str, list[m.EdgeWelcome]]:
    found: dict[str, list[m.EdgeWelcome]] = {}
    for edge, message in field.sent:
        if isinstance(message, m.EdgeWelcome):
            found.setdefault(edge, []).append(message)
    return found


def test_a_word_that_is_renewed_reaches_the_edges_that_are_there() -> None:
    field = Field(toy_edges(2), settings(count=2, wait_edges=2, wait_agents=6))
    field.engine.run.vouching = Word()
    field.run()
    before = {edge: len(said) for edge, said in welcomes(field).items()}
    field.perform(field.engine.receive(fx.WordRenewed(), field.kernel.now))
    for edge, said in welcomes(field).items():
        assert len(said) == before[edge] + 1
        assert said[-1].claim not in [one.claim for one in said[:-1]]


def test_each_agent_is_assigned_to_its_edge_by_a_signature_in_the_order() -> None:
    field = Field(toy_edges(2), settings(count=2, wait_edges=2, wait_agents=6))
    word = field.engine.run.vouching = Word()
    field.run()
    run, task = field.settings.run, field.settings.task
    orders = [(edge, said) for edge, said in field.sent if isinstance(said, m.RoundOrder)]
    assert {order.round for _, order in orders} == {1, 2}
    for edge, order in orders:
        for one in order.assignments:
            assert one.assigned == one.agent.encode()
            assert Assigning(run, order.round, edge, one.agent, task) in word.made


def test_each_call_for_opinions_is_signed() -> None:
    field = Field(
        toy_edges(2), settings(count=2, wait_edges=2, wait_agents=6, opinions=m.OpinionMode.REPORT)
    )
    word = field.engine.run.vouching = Word()
    field.run()
    run, task = field.settings.run, field.settings.task
    asked = [said for _, said in field.sent if isinstance(said, m.OpinionOpen)]
    assert {one.round for one in asked} == {1, 2}
    for one in asked:
        assert one.signed == f"{one.round} {one.mode}".encode()
        assert Calling(run, one.round, task, one.model, one.mode, one.slot) in word.calls
