"""The demo's pure parts: the fleet, and what it says of events."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from fedagent_agent.streams import parse_stream
from fedagent_cli import places
from fedagent_cli.demo.plan import EVERY_DIGIT, HELD_OUT, Demo, make_plan, prepare
from fedagent_cli.demo.run import Heard, Screen
from fedagent_cli.errors import UsageError
from fedagent_coordinator import policies
from fedagent_protocol.errors import FedagentError
from fedagent_task.recipe.spec import Recipe
from fedagent_task.recipe.text import parse_recipe

DEMO = parse_recipe(places.find_recipe("demo").read_text())
CALLS = parse_recipe(places.find_recipe("fa-digits").read_text(), ("policy.name=ucb",))


def recipe_of(demo: Demo) -> Recipe:
    return parse_recipe(demo.recipe.read_text(), demo.sets)


def wanted(folder: Path, recipe: str = "demo", **asked: object) -> Demo:
    plain = dict.fromkeys(("agents", "edges", "rounds", "policy", "seed"))
    return prepare(**{**plain, "folder": folder, "recipe": recipe, **asked})  # type: ignore[arg-type]  # a test's keywords


@given(st.integers(1, 64), st.integers(1, 16))
def test_every_label_stays_held_when_two_are_out(agents: int, edges: int) -> None:
    plan = make_plan(DEMO, agents, edges)
    there = [a for a in plan.agents if a.name not in (plan.victim, plan.slow)]
    assert {label for a in there for label in a.labels} == set(range(10))
    assert all((a.slow_s > DEMO.rounds.deadline_s) == (a.name == plan.slow) for a in plan.agents)
    assert plan.budget >= max(a.price for a in plan.agents)


@given(st.integers(2, 64), st.integers(1, 16), st.integers(1, 20))
def test_an_evaluated_fleet_has_as_many_whole_agents_as_train(
    agents: int, edges: int, best: int
) -> None:
    policy = structs.replace(CALLS.policy, params={"clients_per_round": best})
    plan = make_plan(structs.replace(CALLS, policy=policy), agents, edges)
    whole = [agent for agent in plan.agents if agent.kind == EVERY_DIGIT]
    few = plan.agents[len(whole) :]
    assert (len(plan.agents), len(whole)) == (agents, min(best + 1, agents))
    assert all(agent.labels == tuple(range(10)) for agent in whole)
    assert all(1 <= len(set(agent.labels)) == len(agent.labels) <= 2 for agent in few)
    assert all(agent.settings()["held_out"] == HELD_OUT for agent in plan.agents)
    assert len({agent.position_km for agent in plan.agents}) == agents
    assert (plan.victim, plan.slow) == ("", "")
    # It pays the best, wherever they are seen, and fewer than twice as many.
    dearest = max(agent.price for agent in plan.agents)
    assert plan.budget >= dearest * best / edges - 1e-3
    assert plan.budget * edges < dearest * (best + edges) + 1e-3


@pytest.mark.parametrize(
    ("recipe", "policy", "edges"),
    [("fa-digits", "random", 2), ("da-digits", None, 1), ("da-digits", "volunteers", 1)],
)
def test_the_recipe_alone_makes_an_evaluated_fleet(
    tmp_path: Path, recipe: str, policy: str | None, edges: int
) -> None:
    made = wanted(tmp_path / "d", recipe, policy=policy)
    assert (len(made.agents), len(made.edges), made.seed) == (10, edges, 7)
    assert sum(agent.kind == EVERY_DIGIT for agent in made.plan.agents) == 3
    streams = [str(agent["stream"]) for agent in made.agents.values()]
    assert streams[0] == "digits:labels=0+1+2+3+4+5+6+7+8+9,start=200,rate=100"
    assert parse_stream(streams[4]) == parse_stream("digits:labels=2,start=200,rate=100")
    read = recipe_of(made)
    assert read.policy.name == policy or policy is None
    # Another policy does not get parameters that it has not.
    assert policies.create(read.policy.name, **read.policy.params)


@pytest.mark.parametrize(("policy", "merge_every"), [(None, 2), ("cocs", 2), ("bp-ucb", 1)])
def test_a_policy_gets_what_it_decides_by(
    tmp_path: Path, policy: str | None, merge_every: int
) -> None:
    assert recipe_of(wanted(tmp_path / "d", policy=policy)).rounds.merge_every == merge_every


@pytest.mark.parametrize(
    ("wish", "named"),
    [
        ({"policy": "clairvoyant"}, "random"),
        ({"recipe": "no-such"}, "demo"),
        ({"recipe": "sensor"}, "does not fit the bundled digits.*run_local"),
    ],
)
def test_a_wrong_wish_names_what_there_is(tmp_path: Path, wish: dict[str, str], named: str) -> None:
    with pytest.raises(FedagentError, match=named):
        wanted(tmp_path / "d", **wish)
    assert not list(tmp_path.iterdir())


def test_lines_say_how_rounds_went(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    heard, screen = Heard(60), Screen(tmp_path, as_json=False)
    closed = {"in_time": 1, "ordered": 2, "total_spent_micro": 1_500_000}
    events: tuple[dict[str, object], ...] = (
        {"event": "ready", "primary_metric": "accuracy", "broker": "mqtt://h"},
        {"event": "model", "round": 0, "accuracy": 0.5},
        {"event": "round", "round": 1, **closed},
        {"event": "from a newer version"},
    )
    for event in events:
        screen.event("coordinator", event, heard.take("coordinator", event))
    said = "round 1/60  in time 1 of 2  accuracy 0.500  spent 1.5\n"
    assert capsys.readouterr().out == said
    Screen(tmp_path, as_json=True).event("edge-1", {"event": "ready", "at": 3.0}, "")
    assert capsys.readouterr().out == '{"from":"edge-1","event":"ready"}\n'


def test_a_demo_needs_an_end_and_no_schedule(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text(places.find_recipe("digits").read_text().replace("count = 60", "count = 0"))
    with pytest.raises(UsageError, match=r"sets no number of rounds.*--rounds"):
        wanted(tmp_path / "a", str(own))
    assert "rounds.every_s=0" in wanted(tmp_path / "b", "digits").sets
