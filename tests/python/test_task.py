"""Tasks of built-in kinds: from text, a file or a name, and back to a file."""

from pathlib import Path

import pytest

import fedagent
from fedagent import Task

RECIPE = """
name = "mine"
model = { kind = "softmax", features = 4, classes = 3 }
rounds = { count = 2, deadline_s = 1.0 }
budget = { per_edge = 4.0 }
"""


def test_a_task_is_kept_as_it_is_written(tmp_path: Path) -> None:
    task = Task.from_recipe(RECIPE)
    assert task.recipe.model.classes == 3
    path = task.save(tmp_path / "mine.toml")
    assert path.read_text() == RECIPE
    assert Task.load(path).recipe == task.recipe == Task.load(str(path)).recipe


def test_what_is_no_recipe_is_said(tmp_path: Path) -> None:
    with pytest.raises(fedagent.FedagentError, match=r"model\.classes"):
        Task.from_recipe(RECIPE.replace("classes = 3", "classes = -3"))
    with pytest.raises(fedagent.UsageError, match="no recipe 'minne'"):
        Task.load("minne")
    with pytest.raises(fedagent.UsageError, match="cannot write"):
        Task.from_recipe(RECIPE).save(tmp_path / "no" / "mine.toml")


def test_a_module_becomes_a_file_and_a_task_again(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    example = torch.rand(8, 4), torch.randint(0, 3, (8,))
    loss = nn.functional.cross_entropy
    task = Task(module, loss, example, labels=["a", "b", "c"], learner={"batch": 32})
    again = Task.load(task.save(tmp_path / "net.fedtask"))
    assert again.recipe.model == task.recipe.model
    assert (again.recipe.learner.batch, again.recipe.data.labels) == (32, ("a", "b", "c"))
    with pytest.raises(fedagent.UsageError, match="no longer contains the module"):
        _ = again.source
    frozen = Task(module, loss, example, frozen=["0.*"]).recipe.model
    assert frozen.once_bytes > 4 * (4 * 8 + 8)
    assert all(parameter.requires_grad for parameter in module.parameters())
    with pytest.raises(fedagent.UsageError, match="no parameter matches 'head"):
        _ = Task(module, loss, example, frozen=["head.*"]).recipe
