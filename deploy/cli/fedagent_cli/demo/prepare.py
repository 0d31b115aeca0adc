"""Check what the demo was asked for before anything is started."""

from pathlib import Path

from fedagent_cli import places
from fedagent_cli.errors import UsageError
from fedagent_coordinator import policies
from fedagent_coordinator.policies.base import OPINIONS
from fedagent_protocol.errors import RegistryError
from fedagent_task.errors import TaskError
from fedagent_task.recipe.files import open_recipe
from fedagent_task.recipe.spec import Recipe

from .plan import Plan, make_evaluated_plan, make_plan
from .run import DemoSettings

AGENTS = 8
EVALUATORS = 10
"""Agents unless a number is asked for, and where they evaluate the model."""
BEST = 2
"""Who trains in a round of a recipe that calls for opinions and does not say how many."""
EDGES = 2
PEER_EDGES = 1
"""Neighbours are of one edge: with more of them there would be as many circles."""
PLACED_EDGES = 3
"""Edges unless a number is asked for; a placed run needs some to choose from."""
DIGITS = (64, 10)
"""Features and classes of the bundled digits."""


def prepare(
    *,
    agents: int | None,
    edges: int | None,
    rounds: int | None,
    policy: str | None,
    seed: int | None,
    recipe: str,
    folder: Path | None,
    web: bool = False,
) -> tuple[DemoSettings, Plan]:
    """Return the settings and the fleet, and make the demo's folder.

    Raises:
        UsageError: Something does not fit; the line names what does.
    """
    if policy is not None and policy not in policies.names():
        raise UsageError(
            f"no policy is named {policy!r}", f"there are: {', '.join(policies.names())}"
        )
    path = places.find_recipe(recipe)
    read, sets = _read(path, rounds, policy)
    if (read.model.features, read.model.outputs) != DIGITS:
        takes = f"{read.model.features} features and {read.model.outputs} classes"
        raise UsageError(
            f"{path.name} does not fit the bundled digits: it takes {takes}",
            "use --recipe demo, or your own data from Python: fedagent.run_local",
        )
    # Bundled recipes leave the budget to the fleet; a person's own says what it means.
    bundled = path.parent == places.bundled("recipes")
    plan = _fleet(read, agents=agents, edges=edges)
    rented = zip(plan.edges, plan.rents, strict=True)
    settings = DemoSettings(
        recipe=path,
        agents={agent.name: agent.settings() for agent in plan.agents},
        edges={name: {"rent": rent} if rent else {} for name, rent in rented},
        sets=(*sets, f"budget.per_edge={plan.budget}") if bundled else sets,
        rounds=read.rounds.count,
        policy=policy,
        seed=read.seed if seed is None else seed,
        directory=places.empty_folder(
            folder or places.dated("fedagent-demo"), hint="name another folder with --dir"
        ),
        max_wait_s=read.rounds.max_wait_s,
        web=web,
    )
    return settings, plan


def _read(path: Path, rounds: int | None, policy: str | None) -> tuple[Recipe, tuple[str, ...]]:
    sets: tuple[str, ...] = () if rounds is None else (f"rounds.count={rounds}",)
    try:
        read = open_recipe(path, sets).recipe
        if policy not in (None, read.policy.name):
            sets = (*sets, f"policy.name={policy}", f"policy.params={_carried(read, policy)}")
            read = open_recipe(path, sets).recipe
            if read.rounds.merge_every > 1 and OPINIONS in _needs(read):
                # What such a policy learns from is there after a merge only.
                sets = (*sets, "rounds.merge_every=1")
                read = open_recipe(path, sets).recipe
        if read.rounds.every_s and path.parent == places.bundled("recipes"):
            # Nobody watches a demo's schedule.
            sets = (*sets, "rounds.every_s=0")
            read = open_recipe(path, sets).recipe
    except TaskError as error:
        raise UsageError(f"{path.name}: {error}") from error
    if read.rounds.count == 0:
        raise UsageError(f"{path.name} sets no number of rounds", "add --rounds N")
    return read, sets


def _needs(recipe: Recipe) -> frozenset[str]:
    try:
        return policies.create(recipe.policy.name, **recipe.policy.params).needs
    except RegistryError:
        return frozenset()  # the coordinator says why


def _carried(recipe: Recipe, policy: str | None) -> str:
    """Return the parameters that another policy takes over, as TOML: how many train at most.

    The others are the recipe's policy's own. How many train stays, because the budget is
    made for it: policies over sets learn only from sets that were paid whole.
    """
    size = recipe.policy.params.get("clients_per_round")
    takes = policy is not None and "clients_per_round" in policies.parameters(policy)
    return f"{{ clients_per_round = {size} }}" if takes and isinstance(size, int) else "{}"


def _fleet(recipe: Recipe, *, agents: int | None, edges: int | None) -> Plan:
    placed = recipe.placement.rents
    if not placed and recipe.opinions.mode in ("report", "peers"):
        peers = recipe.opinions.mode == "peers"
        named = recipe.policy.params.get("clients_per_round")
        best = recipe.peers.best if peers else named if isinstance(named, int) else BEST
        return make_evaluated_plan(
            agents=agents or EVALUATORS, edges=edges or (PEER_EDGES if peers else EDGES), best=best
        )
    return make_plan(
        agents=agents or AGENTS,
        edges=edges or (PLACED_EDGES if placed else EDGES),
        deadline_s=recipe.rounds.deadline_s,
        placed=placed,
    )
