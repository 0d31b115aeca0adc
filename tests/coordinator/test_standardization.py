"""Before round 1 devices tell what their samples add up to; the task says it from then on."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import pytest

from fedagent_coordinator.books.write import Books
from fedagent_protocol import messages as m
from fedagent_task.moments import Moments
from fedagent_task.recipe.spec import DataSpec, Recipe
from fedagent_task.recipe.text import parse_task, task_digest, task_of
from tests.fakes.coordinator_site import Site, check_books, recipe, toy_edges

GIVEN = recipe("data.scale=1", "data.standardize=true", "data.standardize_s=5")
POINTS = ["standardizing", "standardize.before-commit", "standardize.committed", "standardized"]


def site_of(folder: Path, edges: int = 2, given: Recipe = GIVEN, **kill: object) -> Site:
    rng = np.random.default_rng(7)
    made = toy_edges(given, edges)
    for agent in (agent for edge in made for agent in edge.agents):
        agent.x = rng.normal(101_325, 500, (50, 64)).astype(np.float32)
        agent.x[:, 5] = 4.0
    return Site(folder, given, made, **kill)  # type: ignore[arg-type]  # a test's own


def all_samples(site: Site) -> Moments:
    x = [agent.x for edge in site.edges for agent in edge.agents if agent.x is not None]
    return Moments.of(np.concatenate(x))


def kept(site: Site) -> DataSpec:
    site.close()
    with Books(site.folder) as store:
        return msgspec.json.decode(store.read.run().recipe, type=Recipe).data


def calls(site: Site) -> list[m.OpinionOpen]:
    return [call for call in site.edges[0].calls if call.mode is m.OpinionMode.MOMENTS]


def orders(site: Site) -> list[m.RoundOrder]:
    sent = [send.message for send in site.sent]
    return [message for message in sent if isinstance(message, m.RoundOrder)]


def check_frozen(site: Site) -> None:
    """Assert that everybody goes by what all samples add up to."""
    data, found = kept(site), all_samples(site)
    assert [one.mean for one in data.features] == found.means()
    assert [one.deviation for one in data.features] == found.deviations()
    assert (data.features[5].mean, data.features[5].deviation) == (4.0, 1.0)
    task = msgspec.structs.replace(task_of(site.recipe), data=data)
    for edge in site.edges:
        assert parse_task(edge.tasks[-1]) == task
    assert {order.task for order in orders(site)} == {task_digest(site.edges[0].tasks[-1])}


def test_the_task_of_round_1_says_how_features_are_scaled(tmp_path: Path) -> None:
    site = site_of(tmp_path)
    site.run()
    assert len(calls(site)) == 1
    (told,) = [event.fields for event in site.events if event.name == "standardized"]
    assert dict(told) == {"features": 64, "agents": 6, "samples": 300}
    waited = [event.fields["reason"] for event in site.events if event.name == "waiting"]
    assert "statistics" in waited
    check_frozen(site)
    check_books(site, 4)


@pytest.mark.parametrize("shift", [0, 1])
def test_features_have_the_names_that_all_streams_agree_on(tmp_path: Path, shift: int) -> None:
    site = site_of(tmp_path)
    names = [f"f{i}" for i in range(64)]

    def named(add_up: Callable[..., m.EdgeMoments], by: int, call: m.OpinionOpen) -> m.EdgeMoments:
        said = add_up(call)
        found = Moments.decode(said.moments, features=64, most=10**6)
        called = found.called((*names[by:], *names[:by]))
        return msgspec.structs.replace(said, moments=called.encode())

    for number, edge in enumerate(site.edges):
        made = partial(named, edge.add_up, shift * number)
        edge.add_up = made  # type: ignore[method-assign]  # of this test
    site.run()
    differs = [one.text for one in site.warned if "call their features differently" in one.text]
    assert len(differs) == shift
    shown = [one.name for one in kept(site).features]
    assert shown == ([f"x{i + 1}" for i in range(64)] if shift else names)


@pytest.mark.parametrize("point", POINTS)
def test_a_killed_coordinator_asks_again_or_knows_it_still(tmp_path: Path, point: str) -> None:
    site = site_of(tmp_path, kill_at=point)
    site.run()
    assert site.kills == 1
    known = POINTS.index(point) > POINTS.index("standardize.before-commit")
    assert len(calls(site)) == (1 if known else 2)
    check_frozen(site)
    check_books(site, 4)


def test_where_nobody_has_samples_all_are_asked_again(tmp_path: Path) -> None:
    site = site_of(tmp_path, edges=1)
    agents = site.edges[0].agents
    later, agents[0].x = agents[0].x, None
    agents[1].x = agents[2].x = None
    site.kernel.after(3.0, lambda: setattr(agents[0], "x", later))
    site.run()
    assert [call.slot for call in calls(site)] == list(range(1, len(calls(site)) + 1))
    assert len(calls(site)) > 1
    (told,) = [event.fields for event in site.events if event.name == "standardized"]
    assert (told["agents"], told["samples"]) == (1, 50)
    check_books(site, 4)


@pytest.mark.parametrize(
    "bad",
    [
        b"\x00",
        Moments.none(64).encode(),
        Moments(4_000_000, (0,) * 64, (1,) * 64).encode(),
        Moments(2, (1 << 300,) * 64, (1 << 700,) * 64).encode(),
    ],
)
def test_an_edge_whose_statistics_cannot_be_spoils_nothing(tmp_path: Path, bad: bytes) -> None:
    site = site_of(tmp_path)
    site.edges[1].moments = bad
    site.run()
    assert site.engine.counters["opinions_refused"] >= 1
    site.edges[1].agents.clear()
    check_frozen(site)
