"""Eight devices that start over two minutes, with the quickstart's recipe: all take part."""

from collections import Counter
from pathlib import Path

import pytest

from fedagent_task.recipe import parse_recipe
from fedagent_testbed.world import VirtualFederation

RECIPE = Path(__file__).parents[2] / "deploy" / "recipes" / "digits.toml"
OVER_S, AGENTS = 120.0, 8


@pytest.mark.parametrize("wait_agents", [AGENTS, 1])
def test_whoever_comes_within_two_minutes_takes_part(tmp_path: Path, wait_agents: int) -> None:
    given = parse_recipe(RECIPE.read_text(), ("learner.name=none", "evaluation.dataset=none"))
    here = VirtualFederation(tmp_path, given, seed=1, agents=AGENTS)
    here.coordinator.wait_agents = wait_agents
    late = [name for name in here.nodes if name.startswith("agent-")]
    began = here.kernel.now
    for name, node in here.nodes.items():
        after = OVER_S * late.index(name) / (AGENTS - 1) if name in late else 0.0
        here.kernel.after(after, node.boot)
    here.kernel.run(until=began + 3600, stop=lambda: bool(here.coordinator.done))
    seconds = here.kernel.now - began
    ending = here._ending()
    for node in here.nodes.values():
        node.alive = False
        node.drop()
    assert (ending.reason, ending.rounds_done, ending.balanced) == ("rounds", 60, True)
    trained = Counter(agent for _, agent in ending.paid)
    assert set(trained) == set(late)
    # Who comes last has missed what the schedule gives two minutes, and no more.
    assert min(trained.values()) >= (60 if wait_agents == AGENTS else 30)
    assert seconds > 59 * given.rounds.every_s
