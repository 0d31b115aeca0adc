"""One policy through one world: the loop of every study, in virtual time."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from typing import Protocol

from fedagent_testbed.recipe import TestbedRecipe

from .history import History

Progress = Callable[[int], None]


class Study(Protocol):
    """World, learning and policy of one run."""

    def play_round(self, t: int, history: History) -> bool:
        """Play round `t`, from 1, into the history; False ends the run: it cannot be paid."""


def play(
    recipe: TestbedRecipe, name: str, seed: int, progress: Progress = lambda _t: None
) -> History:
    """Run a policy for all rounds of a recipe; deterministic by seed but for `decide_ms`.

    `name` is a policy's; in the world ``bas`` it is ITERATIONS+PLACEMENT.

    Raises:
        PolicyError: The policy fails, breaks a constraint, or a parameter is wrong.
        DatasetError: The recipe's data are not there.
        RecipeError: The policy cannot run on this recipe.
    """
    with one_blas_thread():
        study, history = _opened(recipe, name, seed), History(name, seed)
        for t in range(1, recipe.rounds.count + 1):
            if not study.play_round(t, history):
                break
            progress(t)
    return history


def one_blas_thread() -> AbstractContextManager[object]:
    """Keep BLAS to one thread, so that results do not depend on how many cores there are.

    A product of the shapes here gains nothing from a second thread. Without threadpoolctl
    (extra `testbed`) nothing is changed: set ``OMP_NUM_THREADS=1`` there.
    """
    if find_spec("threadpoolctl") is None:
        return nullcontext()
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - optional package

    limit: AbstractContextManager[object] = threadpool_limits(1, user_api="blas")
    return limit


def _opened(recipe: TestbedRecipe, name: str, seed: int) -> Study:
    from .selection import SelectionStudy  # noqa: PLC0415 - a study of streams needs none of it
    from .streams import StreamStudy  # noqa: PLC0415

    kind = StreamStudy if recipe.world == "bas" else SelectionStudy
    return kind(recipe, name, seed)
