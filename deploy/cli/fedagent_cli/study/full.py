"""`fedagent testbed run --full`: one policy through a whole federation in virtual time."""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from fedagent_cli.errors import UNBALANCED, CliError
from fedagent_cli.output import credits_text, echo, emit
from fedagent_task.recipe.spec import MICRO
from fedagent_testbed.study import TestbedRecipe
from fedagent_testbed.study.full import play_full
from fedagent_testbed.study.history import jain


def show_full(
    recipe: TestbedRecipe, policy: str, seed: int, *, folder: Path | None, as_json: bool
) -> None:
    """Run, and print the figures of the run's database, which stays in a folder if one is named.

    Raises:
        PolicyError, RecipeError, DatasetError: As `play_full`.
        CliError: The ledger does not add up.
    """
    rounds = recipe.rounds.count
    with ExitStack() as stack:
        if folder is None:
            passing = tempfile.TemporaryDirectory(prefix="fedagent-full-")
            folder = Path(stack.enter_context(passing))
        run = play_full(recipe, policy, seed, folder)
    history, ending = run.history, run.ending
    record = {
        "recipe": recipe.name,
        "policy": policy,
        "seed": seed,
        "rounds_done": ending.rounds_done,
        "end_reason": ending.reason,
        "utility": float(history.utility(recipe.world.utility).sum()),
        "selected": int(history["selected"].sum()),
        "seconds_per_round": float(history["seconds"].mean()),
        "jain": jain(history.rates()),
        "calls": len(ending.evaluated),
        "answers": sum(answers for _, answers in ending.evaluated),
        "spent": ending.spent_micro / MICRO,
        "ledger_balanced": ending.balanced,
        "messages": run.digest,
    }
    if as_json:
        emit(record)
    else:
        echo(f"{recipe.name}: {policy}, seed {seed}, {ending.rounds_done} of {rounds} rounds")
        echo(f"utility   {record['utility']:g} of {record['selected']} orders")
        echo(f"round     {record['seconds_per_round']:.2f} virtual seconds")
        if ending.evaluated:
            answers = f"{record['answers']} opinions or volunteers"
            echo(f"calls     {record['calls']}, answered by {answers}")
        balanced = "balanced" if ending.balanced else "NOT BALANCED"
        echo(f"spent     {credits_text(ending.spent_micro)} credits, ledger {balanced}")
        echo(f"messages  {run.digest[:16]} (the same for the same seed)")
    if not ending.balanced:
        raise CliError(
            "; ".join(ending.problems) or "the ledger does not balance", exit_code=UNBALANCED
        )
