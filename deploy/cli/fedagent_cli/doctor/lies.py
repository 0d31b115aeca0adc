"""The doctor's look at a coordinator's last run: what an edge that lies could do there."""

from pathlib import Path

from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.read import open_reader
from fedagent_coordinator.books.schema import DATABASE
from fedagent_coordinator.errors import CoordinatorError
from fedagent_task.scoring.measures import NO_DATASET

from .checks import Finding, fine, odd


def lies(home: Path, *more: Path) -> Finding | None:
    """Return what a lying edge of the last run could do (docs/robust.md); None without a run."""
    found = (folder for folder in (*more, home / "coordinator") if (folder / DATABASE).exists())
    if (folder := next(found, None)) is None:
        return None
    try:
        with open_reader(folder) as read:
            run = read.run()
            recipe, edges = recipe_in(run.recipe), len(read.edge_totals(run.run_id))
    except CoordinatorError:
        return None  # `status` says what is wrong with it
    if recipe is None or not edges:
        return None
    who = f"{edges} edge{'s' * (edges > 1)}"
    if recipe.aggregation.robust == "none":
        return odd(f"{who}, and a liar makes the model anything", "leave aggregation.robust out")
    if edges == 1:
        return fine(f"{who}: the model is what it says, since no other edge speaks against it")
    if recipe.evaluation.dataset == NO_DATASET and edges == 2:
        text = f"{who} without held-out samples: nobody can tell which one lies"
        return odd(text, "set evaluation.dataset to 200 samples or more, or add an edge")
    return fine(f"{who}; a liar is left out, of two by 200 held-out samples or more")
