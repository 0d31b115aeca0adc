"""Policies, solvers and placements are found by name, users' own included."""

from importlib.metadata import EntryPoint

import numpy as np
import pytest

from fedagent_coordinator import placement, policies, solvers
from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.policies import Feedback, RoundView, Selection
from fedagent_coordinator.policies.baselines import CheapestPolicy
from fedagent_coordinator.policies.state import Array
from fedagent_coordinator.solvers.flgreedy import UTILITIES, FlgreedySolver
from fedagent_protocol import registry
from fedagent_protocol.errors import ParameterError, PluginError, UnknownNameError
from fedagent_protocol.registry import Guarded
from fedagent_testbed.study import compare, load_recipe
from fedagent_testbed.study.selection import unusable
from tests.fakes.rounds import nothing_played, random_view

THREE = 3


class Mine(CheapestPolicy):
    """A user's own policy."""

    def __init__(self, *, greed: float, mood: str = "good") -> None:
        self.greed, self.mood = greed, mood


class Raises(CheapestPolicy):
    """A constructor that fails."""

    def __init__(self) -> None:
        raise RuntimeError("no\nluck")


class Positional(CheapestPolicy):
    """A parameter that everybody must give, and by place if they like."""

    def __init__(self, greed: float) -> None:
        self.greed = greed


class Angry(CheapestPolicy):
    """Fails, or answers nonsense, whenever it is asked."""

    def select(self, view: RoundView, rng: np.random.Generator) -> Selection:
        raise KeyError("compute")

    def learn(self, feedback: Feedback) -> None:
        raise PolicyError("that is no round of mine")

    def state(self) -> dict[str, Array]:
        return 3  # type: ignore[return-value]  # what a plug-in may do


class Needless:
    """A policy that forgot `needs`."""


class Lost(CheapestPolicy):
    """A policy that fails to say what it needs."""

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]  # what a plug-in may do
        raise OSError("no such file")


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [
        EntryPoint("mine", f"{__name__}:Mine", "fedagent.policies"),
        EntryPoint("random", f"{__name__}:Mine", "fedagent.policies"),
        EntryPoint("weird name!", f"{__name__}:Mine", "fedagent.policies"),
        EntryPoint("gone", "no_such_module:Mine", "fedagent.policies"),
        EntryPoint("number", f"{__name__}:THREE", "fedagent.policies"),
        *(
            EntryPoint(kind.__name__.lower(), f"{__name__}:{kind.__name__}", "fedagent.policies")
            for kind in (Raises, Positional, Angry, Needless, Lost)
        ),
    ]
    monkeypatch.setattr(
        registry, "installed", lambda group: own if group == "fedagent.policies" else []
    )


@pytest.mark.usefixtures("_installed")
def test_a_users_own_policy_is_found_by_its_entry_point_and_a_builtin_name_wins() -> None:
    assert "mine" in policies.names()
    assert policies.parameters("mine") == {"greed": None, "mood": "good"}
    policy = policies.create("mine", greed=2.0)
    assert isinstance(policy, Guarded)
    assert isinstance(policy.thing, Mine)
    assert policy.greed == 2.0
    policies.create("fair", policy=policy)
    assert not isinstance(policies.create("random"), Mine)
    with pytest.raises(ParameterError, match="'greed' is required"):
        policies.create("mine")
    with pytest.raises(ParameterError, match="there are: greed, mood"):
        policies.create("mine", greed=1, hunger=2)
    with pytest.raises(ParameterError, match="must be a finite number"):
        policies.create("positional", greed="much")
    policies.create("positional", greed=1)
    assert "weird name!" not in policies.names()
    with pytest.raises(UnknownNameError):
        policies.create("weird name!")


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gone", "cannot be imported (ModuleNotFoundError: No module named 'no_such_module')"),
        ("number", "is neither a class nor a function"),
        ("raises", "cannot be made (RuntimeError: no luck)"),
        ("needless", "has no 'needs'"),
        ("lost", "'needs' failed (OSError: no such file)"),
    ],
)
def test_a_broken_plug_in_is_named_with_what_is_wrong(name: str, words: str) -> None:
    with pytest.raises(PluginError) as caught:
        policies.create(name)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"policy {name!r} (")
    assert str(caught.value).endswith("fix its package or uninstall it")
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("_installed")
def test_what_a_plug_in_raises_later_is_named_too() -> None:
    angry, view = policies.create("angry"), random_view(np.random.default_rng(0), 1)
    with pytest.raises(PluginError, match=r"'select' failed \(KeyError: 'compute'\)"):
        angry.select(view, np.random.default_rng(0))
    with pytest.raises(PolicyError, match="no round of mine"):
        angry.learn(nothing_played(view))
    with pytest.raises(PluginError, match="'state' failed: it returns int, not Mapping"):
        angry.state()


@pytest.mark.usefixtures("_installed")
def test_one_broken_plug_in_does_not_break_a_comparison_of_all() -> None:
    recipe = load_recipe("cocs-decisions", ["rounds.count=2", "world.clients=10"])
    skipped = {name: unusable(recipe, name) for name in policies.names()}
    assert not skipped["adaptive"]
    assert "KeyError" in skipped["angry"]
    assert "is required" in skipped["positional"]
    assert "no_such_module" in skipped["gone"]
    compared = compare(recipe, ["all"], seeds=1)
    assert {"angry", "gone", "raises", "needless", "mine"} <= set(compared.skipped)
    assert "random" in compared.histories


def test_every_builtin_can_be_made_with_its_defaults() -> None:
    for kind in (policies.registry, solvers.registry, placement.registry):
        for name in kind.builtin:
            assert kind.create(name) is not kind.create(name)
    with pytest.raises(UnknownNameError, match="no solver is named 'magic'; there are: density"):
        solvers.create("magic")


def test_a_solver_and_its_parameters_are_one_text() -> None:
    made = solvers.create("flgreedy:epsilon=0.1, utility=sqrt-total")
    assert isinstance(made, FlgreedySolver)
    assert (made._epsilon, made._utility) == (0.1, UTILITIES["sqrt-total"])
    for text, problem in (
        ("density:visits=1", "visits' is unknown"),
        ("density:max_visits=true", "max_visits' is True"),
        ("density:max_visits", "write key=value"),
        ("density:max_visits=1,max_visits=2", "given twice"),
    ):
        with pytest.raises(ParameterError, match=problem):
            solvers.create(text)
    with pytest.raises(UnknownNameError):
        solvers.create("flgreedy:utility=log")
