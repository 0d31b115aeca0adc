"""The models that a run has kept, ready for samples."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from fedagent_cli.errors import MissingError
from fedagent_cli.models import kept_model
from fedagent_cli.runs import open_run, recipe_of
from fedagent_protocol.tensors import decode_tensors
from fedagent_task.exported import Described, TensorsFile
from fedagent_task.models import create

from .run_data import Source, folder_of

Tensors = dict[str, npt.NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Model:
    """A global model of a run.

    Attributes:
        round: After which round.
        metrics: How good it is, as far as that was measured.
        tensors: Its weights by name, float32.
        labels: What its classes are called; empty where they are numbers.
    """

    round: int
    metrics: Mapping[str, float]
    tensors: Tensors
    labels: tuple[str, ...]
    regression: bool
    _file: TensorsFile = field(repr=False)

    def scores(self, x: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Return the model's output [n, outputs] for samples [n, features] as sensors say them.

        Probabilities of a class each; margins of an svm; one column of a regression.
        """
        samples = np.asarray(x)
        return np.asarray(self._file.forward(samples.reshape(len(samples), -1)))

    def predict(self, x: npt.ArrayLike) -> npt.NDArray[Any]:
        """Return a value [n] a sample: the class, by its name if it has one, or the number."""
        output = self.scores(x)
        if self.regression:
            return np.asarray(output[:, 0])
        found = np.asarray(output.argmax(axis=1))
        return np.asarray(self.labels)[found] if self.labels else found


def load_model(run: Source = None, round: int | None = None, *, run_id: str | None = None) -> Model:  # noqa: A002 - what it is
    """Return a global model of a run.

    Args:
        run: As of `fedagent.read`.
        round: After which round, of those that are kept; none for the newest.
        run_id: As of `fedagent.read`.

    Raises:
        NoRunError: There is no such run.
        MissingError: That model is not kept, or this version cannot read it.
    """
    with open_run(folder_of(run), run_id) as (reader, chosen):
        found = reader.models.rows(chosen.run_id)
        recipe = recipe_of(chosen)
        row, data = kept_model(reader.folder, found, round)
    if recipe is None:
        raise MissingError("this version cannot read the run's recipe", "use the one that ran it")
    model = create(recipe.model)
    raw = decode_tensors(data, model.manifest())
    tensors = {name: tensor.astype("float32") for name, tensor in raw.items()}
    return Model(
        round=row.round,
        metrics=dict(row.metrics),
        tensors=tensors,
        labels=recipe.data.labels,
        regression=recipe.model.regression,
        _file=TensorsFile(Described(recipe.model, recipe.data), model, tensors),
    )
