"""What is learnt, and how: a task that a coordinator can be given."""

import os
from pathlib import Path
from typing import Self

from fedagent_cli import places
from fedagent_cli.errors import UsageError
from fedagent_cli.output import writing
from fedagent_task.recipe import parse_recipe
from fedagent_task.spec import Recipe

RECIPE = ".toml"


class Task:
    """Something to learn, as a file that `fedagent coordinator start --recipe` takes.

    Attributes:
        suffix: What a file of it ends with.
        content: What is in that file.
    """

    def __init__(self, *, suffix: str, content: bytes) -> None:
        self.suffix = suffix
        self.content = content

    @classmethod
    def from_recipe(cls, recipe: str | os.PathLike[str]) -> Self:
        """Return the task of a recipe: TOML text of several lines, a file, or a bundled name.

        Raises:
            RecipeError: It does not say what it must.
            UsageError: There is no such file or name.
        """
        if isinstance(recipe, str) and "\n" in recipe:
            text = recipe
        else:
            path = places.find_recipe(os.fspath(recipe))
            try:
                text = path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise UsageError(f"cannot read {path}: {error}", "name a recipe") from error
        parse_recipe(text)
        return cls(suffix=RECIPE, content=text.encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the task that `save` wrote, or that of a recipe's file; errors as of both."""
        return cls.from_recipe(path)

    @property
    def recipe(self) -> Recipe:
        """The whole recipe, checked."""
        return parse_recipe(self.content.decode())

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the task, and return the path; `UsageError` if it cannot be written."""
        target = Path(path).expanduser()
        with writing(target):
            target.write_bytes(self.content)
        return target
