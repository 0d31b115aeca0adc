"""A trainer in this process, on a model's file, with one place for its updates."""

from pathlib import Path
from typing import Any

import numpy as np

from fedagent_agent.learners import Tensors
from fedagent_agent.trainer import frames as fr
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import decode_tensors, encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.spec import Recipe, TaskSpec
from fedagent_task.recipe.text import parse_recipe, task_bytes

DEMO = (Path(__file__).parents[2] / "deploy/recipes/demo.toml").read_text()


def demo(*sets: str) -> Recipe:
    return parse_recipe(DEMO, sets)


class TrainerBench:
    """A trainer that nobody cancels unless `cancelled` says so."""

    def __init__(self, folder: Path) -> None:
        self.model, self.out = folder / "model", folder / "update"
        self.trainer = Trainer(lambda _job, _wait: False)

    def on(self, trainer: Trainer) -> "TrainerBench":
        """Take another trainer."""
        self.trainer.close()
        self.trainer = trainer
        return self

    def open(self, task: TaskSpec | Recipe, stream: str = "digits", **fields: Any) -> fr.Reply:
        """Open a stream; the file of the base model is the task's first one."""
        self.task = task
        self.base(create(task.model).init(0))
        ask = {"job": 1, "task": task_bytes(task), "stream": stream, "seed": 1, **fields}
        return self.trainer.answer(fr.Open(**ask))

    def opened(self, *open_: Any, **fields: Any) -> "TrainerBench":
        reply = self.open(*open_, **fields)
        assert isinstance(reply, fr.Opened), reply
        return self

    def refused(self, *open_: Any, **fields: Any) -> str:
        """Return why a stream or a task is refused."""
        reply = self.open(*open_, **fields)
        assert isinstance(reply, fr.Failed), reply
        assert reply.reason == "schema"
        return reply.detail

    def base(self, weights: Tensors) -> None:
        self.model.write_bytes(encode_tensors(weights))

    def train(self, **fields: Any) -> fr.Reply:
        ask = {"job": 2, "model": str(self.model), "out": str(self.out), **fields}
        return self.trainer.answer(fr.Train(**ask))

    def trained(self, **fields: Any) -> fr.Trained:
        reply = self.train(**fields)
        assert isinstance(reply, fr.Trained), reply
        return reply

    def failed(self, reason: str, **fields: Any) -> fr.Failed:
        reply = self.train(**fields)
        assert isinstance(reply, fr.Failed), reply
        assert reply.reason == reason
        return reply

    def evaluated(self, **fields: Any) -> fr.Evaluated:
        reply = self.trainer.answer(fr.Evaluate(**{"job": 3, "model": str(self.model), **fields}))
        assert isinstance(reply, fr.Evaluated), reply
        return reply

    def update(self) -> dict[str, np.ndarray[tuple[int, ...], np.dtype[Any]]]:
        return decode_tensors(self.out.read_bytes(), create(self.task.model).manifest())
