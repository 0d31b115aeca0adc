"""The models that a run has kept, ready for samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedagent_cli.errors import UsageError
from fedagent_cli.extras import need, optional
from fedagent_cli.model.models import got_once, kept_model, own_tensors, readable
from fedagent_cli.read.runs import open_run, recipe_of
from fedagent_coordinator.books.queries import Queries
from fedagent_task.models import Floats, create
from fedagent_task.models import Model as Computes
from fedagent_task.models.graph import Graph
from fedagent_task.recipe.text import Described
from fedagent_task.scoring.exported import TensorsFile
from fedagent_task.scoring.graph import scored

from .deal import rows_of
from .run_data import Source, folder_of

Tensors = dict[str, Floats]


@dataclass(frozen=True, slots=True)
class Model:
    """A global model of a run.

    Attributes:
        round: After which round.
        metrics: How good it is, as far as that was measured.
        tensors: Its weights by name, float32; with what devices got once, in a task of a module.
        labels: What its classes are called; empty where they are numbers.
        regression: Whether it gives numbers, not classes.
    """

    round: int
    metrics: Mapping[str, float]
    tensors: Tensors
    labels: tuple[str, ...]
    regression: bool
    _file: TensorsFile = field(repr=False)

    def scores(self, x: npt.ArrayLike | tuple[npt.ArrayLike, ...]) -> npt.NDArray[np.float64]:
        """Return the model's output [n, outputs] for samples [n, ...] as sensors say them.

        Probabilities of a class each; margins of an svm; values of a regression.

        Several inputs are a tuple, as in `run_local`.

        Raises:
            UsageError: A sample is not as wide as the model's.
            MissingError: It needs torch, which is not installed.
        """
        samples = rows_of(x)
        model, wanted = self._file.model, self._file.described.model.features
        if isinstance(model, Graph) and samples.shape[1] != wanted:
            reason = f"x has {samples.shape[1]} numbers a sample, the model takes {wanted}"
            raise UsageError(reason, "give x as [n, ...]")
        if type(model) is Graph:
            need("torch")
        return np.asarray(self._file.forward(samples))

    def predict(self, x: npt.ArrayLike | tuple[npt.ArrayLike, ...]) -> npt.NDArray[Any]:
        """Return for each sample its class [n], by its name if it has one, or its number [n].

        A regression of several numbers gives them all, [n, outputs].
        """
        output = self.scores(x)
        if self.regression:
            return np.asarray(output[:, 0]) if output.shape[1] == 1 else output
        found = np.asarray(output.argmax(axis=1))
        return np.asarray(self.labels)[found] if self.labels else found

    @property
    def module(self) -> Any:
        """The same as a torch module in eval mode, with the names that the user's tensors have.

        Raises:
            UsageError: The task was of a built-in kind.
            MissingError: Torch is not installed.
        """
        model = self._file.model
        if not isinstance(model, Graph):
            kind = self._file.described.model.kind
            raise UsageError(f"a {kind} is no torch module", "use predict, scores or tensors")
        made = optional("fedagent_task.program.torch_program", "torch")
        program = made.TorchProgram(model.program)
        program.load(self.tensors)
        return program.module.eval()


def load_model(run: Source = None, round: int | None = None, *, run_id: str | None = None) -> Model:  # noqa: A002 - what it is
    """Return a global model of a run.

    Args:
        run: As of `fedagent.read`.
        round: After which round, of those that are kept; none for the newest.
        run_id: As of `fedagent.read`.

    Raises:
        MissingError: There is no such run.
        MissingError: That model is not kept, or this version cannot read it.
    """
    with open_run(Queries, folder_of(run), run_id) as (reader, chosen):
        recipe = readable(recipe_of(chosen))
        row, data = kept_model(reader.folder, reader.models.rows(chosen.run_id), round)
        folder = reader.folder
    model, tensors = create(recipe.model), own_tensors(data)
    computes: Computes = model
    if isinstance(model, Graph):
        once = got_once(folder, model, recipe.model.once)
        computes = scored(model, once) or model
        tensors = {**once, **tensors}
    return Model(
        round=row.round,
        metrics=dict(row.metrics),
        tensors=tensors,
        labels=recipe.data.labels,
        regression=recipe.model.regression,
        _file=TensorsFile(Described(recipe.model, recipe.data), computes, tensors),
    )
