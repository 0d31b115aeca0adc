"""What is learnt, and how: a task that a coordinator can be given."""

import copy
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Self

from fedagent_cli import places
from fedagent_cli.errors import UsageError
from fedagent_cli.extras import optional
from fedagent_cli.output import style_of, writing
from fedagent_task.program.source import TaskSource
from fedagent_task.recipe.files import open_recipe
from fedagent_task.recipe.spec import Recipe
from fedagent_task.task_file import SUFFIX, encode_task

RECIPE = ".toml"


class Task:
    """A torch module with its loss, or a recipe: what `fedagent coordinator start` takes.

    Args:
        model: A ``torch.nn.Module``; devices run its graph, not its code.
        loss: ``loss(output, target)``, or ``loss(output, *inputs)`` where there is no target;
            the mean over a batch.
        example: One batch: the inputs, then the target, or None where there is none. Tensors
            whose first dimension is the batch.
        labels: What the classes are called.
        local: Patterns of names of tensors that stay on the device; ``"norms"`` stands for all
            normalisation layers.
        frozen: Patterns of names of parameters that are not learnt and travel once.
        learner: Defaults for ``[learner]``, e.g. ``{"rate": 0.1, "batch": 32}``.

    The graph is made when it is needed first: by `save`, `recipe` or `run_local`, which raise
    `FedagentError` with what cannot be a graph and the hint, and `MissingError` without torch.
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[..., Any],
        example: Sequence[Any],
        *,
        labels: Sequence[str] = (),
        local: Sequence[str] = (),
        frozen: Sequence[str] = (),
        learner: Mapping[str, object] | None = None,
    ) -> None:
        self._source: TaskSource | None = TaskSource(
            model=_freeze(model, frozen) if frozen else model,
            loss=loss,
            example=tuple(example),
            labels=tuple(labels),
            local=tuple(local),
            learner=dict(learner or {}),
        )
        self._path: Path | None = None
        self._content, self._suffix = b"", SUFFIX

    @classmethod
    def from_recipe(cls, recipe: str | os.PathLike[str]) -> Self:
        """Return the task of a recipe: TOML text of several lines, a file, or a bundled name.

        Raises:
            FedagentError: It does not say what it must.
            UsageError: There is no such file or name.
        """
        made = cls(None, max, ())
        made._source, made._suffix = None, RECIPE
        if isinstance(recipe, str) and "\n" in recipe:
            made._content = recipe.encode()
        else:
            made._path = places.find_recipe(os.fspath(recipe))
            made._suffix = made._path.suffix
        made.checked()
        return made

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the task of a file that `save` or `fedagent task build` wrote, or of a recipe."""
        return cls.from_recipe(path)

    @property
    def source(self) -> TaskSource:
        """What the graph is made of; raises `UsageError` for a task of a file or of a recipe."""
        if self._source is None:
            raise UsageError("the task no longer contains the module", "build it from the module")
        return self._source

    @property
    def recipe(self) -> Recipe:
        """The whole recipe, checked."""
        return self.checked()

    def checked(self, sets: Iterable[str] = ()) -> Recipe:
        """Return the recipe with overrides such as ``rounds.count=5``; errors as `from_recipe`."""
        with tempfile.TemporaryDirectory() as folder:
            return open_recipe(self.path_in(Path(folder)), sets).recipe

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the task, and return the path; `UsageError` if it cannot be written."""
        target = Path(path).expanduser()
        style_of(target, self._suffix)
        content = self._bytes()
        with writing(target):
            target.write_bytes(content)
        return target

    def path_in(self, folder: Path) -> Path:
        """Return the file of the task: its own, or one that is written into a folder."""
        return self._path or self.save(folder / f"task{self._suffix}")

    def _bytes(self) -> bytes:
        if self._path is not None:
            return self._path.read_bytes()
        if self._source is not None and not self._content:
            making = optional("fedagent_task.program.export", "torch")
            self._content = encode_task(making.make_task(self._source).task)
        return self._content


def _freeze(model: Any, patterns: Sequence[str]) -> Any:
    """Return a copy of a module in which parameters of these names are not learnt."""
    made = copy.deepcopy(model)
    named = dict(made.named_parameters())
    for pattern in patterns:
        found = [name for name in named if fnmatchcase(name, pattern)]
        if not found:
            known = ", ".join(list(named)[:8])
            raise UsageError(f"frozen: no parameter matches {pattern!r}", f"there are: {known}")
        for name in found:
            named[name].requires_grad_(False)
    return made
