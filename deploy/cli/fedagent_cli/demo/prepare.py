"""Check what the demo was asked for before anything is started."""

import asyncio
import json
import socket
from pathlib import Path

from fedagent_cli import places
from fedagent_cli.errors import DemoError, UsageError
from fedagent_coordinator import policies
from fedagent_coordinator.policies.base import OPINIONS
from fedagent_node.address import BrokerAddress
from fedagent_node.broker import choose_kind
from fedagent_node.errors import LinkError, connect_reason
from fedagent_node.network import ANSWER_S, answers
from fedagent_node.process import in_two
from fedagent_protocol.errors import RegistryError
from fedagent_task.errors import TaskError
from fedagent_task.recipe_file import open_recipe
from fedagent_task.spec import Recipe
from fedagent_task.task_file import SUFFIX

from .plan import Plan, make_evaluated_plan, make_plan, spread, with_dear
from .run import DemoSettings
from .streams import check_stream, own_fleet

KINDS = ("auto", "mosquitto", "embedded")
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
POSITION = "x_km"
"""What a policy needs that looks at where devices are."""
DIGITS = (64, 10)
"""Features and classes of the bundled digits."""
DEALT = 500
"""Samples that a device has at once of a dataset that is dealt."""


def prepare(
    *,
    agents: int | None,
    edges: int | None,
    rounds: int | None,
    policy: str | None,
    seed: int | None,
    recipe: str,
    broker: str,
    folder: Path | None,
    stream: str | None = None,
    dataset: str | None = None,
    test: str | None = None,
    dear: bool = False,
) -> tuple[DemoSettings, Plan]:
    """Return the settings and the fleet, and make the demo's folder.

    Raises:
        UsageError: Something does not fit; the line names what does.
        DemoError: The broker that was named is not there.
    """
    _check_broker(broker)
    if policy is not None and policy not in policies.names():
        raise UsageError(
            f"no policy is named {policy!r}", f"there are: {', '.join(policies.names())}"
        )
    path = places.find_recipe(recipe)
    template = _template(stream, dataset)
    read, sets = _read(path, rounds, policy, test or _held_out(path, template))
    model = read.model
    if not template and (model.features, model.outputs) != DIGITS:
        takes = f"{model.features} features and {model.outputs} classes"
        raise UsageError(
            f"{path.name} does not fit the bundled digits: it takes {takes}",
            "give the devices' data, e.g. --dataset FILE or --stream 'csv:device-{i}.csv'; "
            "or use --recipe demo",
        )
    # Bundled recipes and tasks leave the budget to the fleet; a person's own says what it means.
    bundled = path.parent == places.bundled("recipes") or path.suffix == SUFFIX
    plan = _fleet(read, agents=agents, edges=edges)
    plan = with_dear(plan) if dear else plan
    if path.suffix == SUFFIX or template:
        plan = own_fleet(plan, template)
        check_stream(plan.agents[0].stream, read)
    if POSITION in _needs(read):
        plan = spread(plan)
    settings = DemoSettings(
        recipe=path,
        sets=(*sets, f"budget.per_edge={plan.budget}") if bundled else sets,
        rounds=read.rounds.count,
        policy=policy,
        seed=read.seed if seed is None else seed,
        broker=broker,
        directory=places.empty_folder(
            folder or places.dated("fedagent-demo"), hint="name another folder with --dir"
        ),
        max_wait_s=read.rounds.max_wait_s,
    )
    return settings, plan


def _template(stream: str | None, dataset: str | None) -> str:
    """Return the stream of each device with its number to be filled in; empty for digits."""
    if stream is not None and dataset is not None:
        raise UsageError("--stream and --dataset cannot be combined", "give one of them")
    if dataset is not None:
        return f"replay:{dataset},part={{i}}/{{n}},start={DEALT}"
    return stream or ""


def _held_out(path: Path, template: str) -> str | None:
    """Return what a task on the bundled digits is evaluated by; None leaves it to the recipe."""
    return "digits-test" if path.suffix == SUFFIX and not template else None


def _read(
    path: Path, rounds: int | None, policy: str | None, test: str | None
) -> tuple[Recipe, tuple[str, ...]]:
    sets: tuple[str, ...] = () if rounds is None else (f"rounds.count={rounds}",)
    if test is not None:
        sets = (*sets, f"evaluation.dataset={json.dumps(test)}")
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


def _check_broker(broker: str) -> None:
    if "://" in broker:
        _check_running(broker)
        return
    if broker not in KINDS:
        raise UsageError(f"no broker {broker!r}", f"use {', '.join(KINDS)} or mqtt://HOST:PORT")
    try:
        choose_kind(broker)
    except LinkError as error:
        raise UsageError(str(error)) from error


def _check_running(url: str) -> None:
    """Refuse a broker that takes nobody in now: a demo would wait for it in vain."""
    try:
        address = BrokerAddress.parse(url)
        address.check_cover(insecure=False)
    except LinkError as error:
        raise UsageError(*in_two(error)) from error
    if address.user:
        hint = "use a broker without a password, or leave out --broker"
        raise UsageError("the demo does not support user and password", hint)
    if address.scheme == "mqtts":
        raise UsageError("the demo has no certificates", "use mqtt://HOST:PORT on this machine")
    hint = "start it, or leave out --broker: the demo starts its own brokers"
    try:
        socket.create_connection((address.host, address.port), ANSWER_S).close()
    except OSError as error:
        raise DemoError(f"no broker at {address}: {connect_reason(error)}", hint) from error
    if not asyncio.run(answers(address)):
        raise DemoError(f"the service at {address} accepts no MQTT client without a password", hint)
