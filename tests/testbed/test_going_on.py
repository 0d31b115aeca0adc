"""A run that has ended goes on with the edges and agents that are still there."""

from pathlib import Path

from .test_survival import ROUNDS, world


def test_edges_and_agents_that_were_told_the_end_take_part_again(tmp_path: Path) -> None:
    here = world(tmp_path, 3, edges=2, agents=4)
    for node in here.nodes.values():
        node.boot()
    here.kernel.run(until=here.kernel.now + 300, stop=lambda: bool(here.coordinator.done))
    assert here.coordinator.done == "rounds"
    here.kernel.run(until=here.kernel.now + 20)
    here.coordinator.more_rounds, here.coordinator.done = 4, ""
    here.nodes["coordinator"].kill()
    here.kernel.run(until=here.kernel.now + 300, stop=lambda: bool(here.coordinator.done))
    ending = here._ending()
    assert (ending.reason, ending.rounds_done) == ("rounds", ROUNDS + 4)
    assert ending.balanced, ending.problems
    # One agent may miss a round that began before it was heard again.
    later = [agent for round_, agent in ending.paid if round_ > ROUNDS]
    assert len(set(later)) == 4
    for node in here.nodes.values():
        node.alive = False
        node.drop()
