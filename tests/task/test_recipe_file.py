"""Recipes of models that travel as graphs: what a task file tells, and what goes with it."""

from pathlib import Path

import pytest

from fedagent_task.errors import RecipeError
from fedagent_task.recipe.files import open_recipe
from fedagent_task.recipe.text import parse_recipe, recipe_digest
from tests.fakes.graph_tasks import dense_task, written

RECIPE = """
name = "mine"
[model]
kind = "graph"
task = "my.fedtask"
[rounds]
count = 3
deadline_s = 2
[budget]
per_edge = 5
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    written(tmp_path, dense_task(learner={"rate": 0.25, "batch": 8}, labels=tuple("abcdefghij")))
    path = tmp_path / "mine.toml"
    path.write_text(RECIPE)
    return path


def test_a_task_file_tells_what_the_model_is_and_its_path_is_forgotten(recipe: Path) -> None:
    recipe.write_text(RECIPE, "utf-8-sig")  # as Windows writes it
    read = open_recipe(recipe)
    task, model = read.task, read.recipe.model
    assert task is not None
    assert (model, model.task) == (task.model, "")
    assert (model.features, model.classes, model.regression) == (64, 10, False)
    learner = read.recipe.learner
    assert (learner.name, learner.rate, learner.batch) == ("minibatch", 0.25, 8)
    assert read.recipe.data.labels == tuple("abcdefghij")
    (recipe.parent / "elsewhere").mkdir()
    moved = recipe.parent / "elsewhere" / "my.fedtask"
    moved.write_bytes((recipe.parent / "my.fedtask").read_bytes())
    other = recipe.with_name("other.toml")
    other.write_text(RECIPE.replace("my.fedtask", "elsewhere/my.fedtask"))
    assert recipe_digest(open_recipe(other).recipe) == recipe_digest(read.recipe)


def test_a_task_file_stands_for_a_recipe(tmp_path: Path) -> None:
    path = written(tmp_path, dense_task(), "My model 2.fedtask")
    read = open_recipe(path, ["rounds.count=7"]).recipe
    assert (read.name, read.policy.name, read.rounds.count) == ("my-model-2", "adaptive", 7)
    assert read.rounds.deadline_s >= 10
    assert open_recipe(written(tmp_path, dense_task(), "3.fedtask")).recipe.name == "task-3"


@pytest.mark.parametrize(
    ("sets", "error", "says"),
    [
        (["model.features=64"], RecipeError, r"model\.features: is set by the task file"),
        (["model.classes=10"], RecipeError, r"model\.classes: is set by the task file"),
        (["model.task=no.fedtask"], RecipeError, r"no\.fedtask: cannot be read.*task build"),
        (["model.task=mine.toml"], RecipeError, r"mine\.toml: is not a task file"),
        (["learner.name=strsaga"], RecipeError, r"learner\.name.*minibatch, sgd or bgd"),
        (["learner.backend=numpy"], RecipeError, r"learner\.backend"),
        (["model.l2=0.1"], RecipeError, r"model\.l2.*loss of the task"),
        (["model.hidden=[3]"], RecipeError, r"model\.hidden"),
        (["data.labels=['a']"], RecipeError, r"data\.labels.*10 different names"),
    ],
)
def test_keys_that_do_not_go_together(
    recipe: Path, sets: list[str], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        open_recipe(recipe, sets)


def test_a_buffer_of_many_columns_is_bounded(tmp_path: Path) -> None:
    path = written(tmp_path, dense_task(10_000))
    with pytest.raises(RecipeError, match=r"learner\.buffer"):
        open_recipe(path, ["learner.buffer=10000"])


def test_a_task_cannot_be_named_where_there_is_no_file(recipe: Path) -> None:
    with pytest.raises(RecipeError, match=r"model\.task: names 'my\.fedtask', which was not read"):
        parse_recipe(recipe.read_text(), ["model.features=64"])
    text = recipe.read_text().replace('task = "my.fedtask"', "features = 64")
    with pytest.raises(RecipeError, match=r"model\.task: is missing.*my_model\.fedtask"):
        parse_recipe(text)
