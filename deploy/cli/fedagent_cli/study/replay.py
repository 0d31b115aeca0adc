"""`fedagent replay`: another policy over the rounds of a recorded run."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import click
import msgspec
from msgspec import structs

from fedagent_cli import options
from fedagent_cli.errors import (
    DIFFERENT,
    UNREADABLE,
    CliError,
    UsageError,
)
from fedagent_cli.output import echo, emit, number_text, table
from fedagent_cli.read.runs import open_run
from fedagent_coordinator import policies
from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.read import Reader
from fedagent_coordinator.books.rows import RunRow
from fedagent_coordinator.errors import PolicyError
from fedagent_coordinator.run_settings import decision_policies, opinion_mode
from fedagent_protocol.errors import FedagentError, UnknownNameError
from fedagent_task.errors import RecipeError
from fedagent_task.recipe.spec import Params, PolicySpec, Recipe
from fedagent_task.recipe.text import override
from fedagent_testbed.off_policy import Estimate, Value, choices_of, estimated
from fedagent_testbed.replay import Replayed
from fedagent_testbed.replay import replay as decide


@click.command(
    epilog=options.examples(
        "fedagent replay --data-dir fedagent-demo --policy cheapest --decisions",
        "fedagent replay --check",
        "fedagent replay --run 3f2a --policy linucb --set alpha=0.5 --json",
    )
)
@click.option("--policy", show_default="the policy that was recorded", help="Policy that decides.")
@options.sets
@click.option(
    "--decisions", is_flag=True, help="Show what the policy chooses, without an estimate."
)
@click.option(
    "--check",
    is_flag=True,
    help="Fail (49) unless every decision is the recorded one, bit for bit.",
)
@options.coordinator_data
@options.run_id
@options.as_json
def replay(
    *,
    policy: str | None,
    sets: tuple[str, ...],
    decisions: bool,
    check: bool,
    data_dir: Path | None,
    run: str | None,
    as_json: bool,
) -> None:
    """Decide the rounds of a recorded run with another policy, and estimate its result.

    No device is ordered. The policy sees what was recorded, and learns of the orders that both
    gave. --data-dir may be that of a demo or a study too.
    """
    with open_run(Reader, data_dir, run) as (reader, chosen):
        rounds, name = _replayed(reader, chosen, policy, sets)
    same = sum(one.same for one in rounds)
    record: dict[str, object] = {
        "run": chosen.run_id,
        "policy": name,
        "rounds": len(rounds),
        "same": same,
        "choices": sum(len(one.pairs) for one in rounds),
        "agreed": sum(one.agreed for one in rounds),
    }
    if not as_json:
        echo(f"run {chosen.run_id[:8]}: {len(rounds)} rounds decided by {name}")
        echo(f"  {same} of them as they were recorded, bit for bit")
        agreed, choices = record["agreed"], record["choices"]
        echo(
            f"  {agreed} of its {choices} choices, before exploration, were also ordered in the run"
        )
    if check and same < len(rounds):
        first = next(one.round.view.round for one in rounds if not one.same)
        raise CliError(
            f"{len(rounds) - same} of {len(rounds)} rounds are decided differently, first {first}",
            "another policy or version decided them; leave out --check",
            exit_code=DIFFERENT,
        )
    if decisions or check:
        if as_json:
            emit(record)
        return
    found = _estimated(rounds)
    if as_json:
        emit({**record, "estimate": msgspec.to_builtins(found)})
        return
    _print(found)


def _replayed(
    reader: Reader, run: RunRow, policy: str | None, sets: Sequence[str]
) -> tuple[list[Replayed], str]:
    recipe = recipe_in(run.recipe)
    if recipe is None:
        raise CliError(
            "its recipe is from another version",
            "replay it with that version",
            exit_code=UNREADABLE,
        )
    spec = recipe.policy
    asked = opinion_mode(recipe, policies.create(spec.name, **spec.params))
    mode = "off" if asked is None else asked.value
    # What the run's clients were asked for, whatever another policy would have asked them.
    recipe = structs.replace(recipe, opinions=structs.replace(recipe.opinions, mode=mode))
    if policy is not None and policy != spec.name:
        spec = structs.replace(spec, name=policy, params={}, exploration=0.0)
    spec = _with(spec, sets)
    recipe = structs.replace(recipe, policy=spec)
    try:
        made = decision_policies(recipe).policy
    except (UnknownNameError, PolicyError) as error:
        hint = f"take one of: {', '.join(_replayable(recipe))}"
        raise UsageError(error.sentence, hint) from error
    return list(decide(reader.logged(run.run_id), made, seed=recipe.seed, spec=spec)), spec.name


def _replayable(recipe: Recipe) -> Iterator[str]:
    """Yield the policies that can decide the rounds of a run, by what it asked its clients for."""
    for name in policies.names():
        spec = structs.replace(recipe.policy, name=name, params={})
        with suppress(FedagentError):
            decision_policies(structs.replace(recipe, policy=spec))
            yield name


def _with(spec: PolicySpec, sets: Sequence[str]) -> PolicySpec:
    made: dict[str, object] = {"params": spec.params}
    for assignment in sets:
        if "=" not in assignment:
            raise UsageError(f"--set {assignment} gives no value", "write --set KEY=VALUE")
        made = override(made, f"params.{assignment}")
    try:
        params = msgspec.convert(made["params"], Params)
    except msgspec.ValidationError as error:
        raise RecipeError("policy.params", str(error), "see docs/policies") from error
    return msgspec.structs.replace(spec, params=params)


def _estimated(rounds: list[Replayed]) -> Estimate:
    known = [choices_of(one.round, one.pairs) for one in rounds]
    return estimated([one for one in known if one is not None])


def _print(found: Estimate) -> None:
    echo()
    rows = [("doubly robust", found.doubly_robust), ("inverse propensity", found.ips)]
    echo(f"updates in time per round; {number_text(found.recorded)} were recorded")
    table(("estimate", "mean", "95 % interval"), [(name, *_cells(value)) for name, value in rows])
    echo(
        f"{found.matched} of {found.choices} choices were ordered, worth "
        f"{found.effective:.0f} (effective sample size); "
        f"{found.without_support:.1%} of all have no support"
    )


def _cells(value: Value) -> tuple[str, str]:
    return number_text(value.mean), f"{number_text(value.low)} to {number_text(value.high)}"
