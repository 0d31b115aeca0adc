"""Every learner in the trainer, as an order finds it."""

from pathlib import Path

import numpy as np

from fedagent_agent.trainer.frames import Open, Opened, Train, Trained
from fedagent_agent.trainer.training import Trainer
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe.text import parse_recipe, task_bytes

ROOT = Path(__file__).parents[3]


def test_ratings_come_as_a_stream(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(1, (10, 8), (200, 2))
    lines = (f"{user}\t{item}\t{1 + (user + item) % 5}\t0" for user, item in ids)
    (tmp_path / "u.data").write_text("\n".join(lines) + "\n9999\t1\t3\t0\n")
    sets = [
        "learner.name=strsaga",
        "learner.rate=0.02",
        "model={kind='mf',features=2,users=9,items=7,rank=2}",
        "data={dtype='int64',offset=-1}",
    ]
    recipe = parse_recipe((ROOT / "deploy" / "recipes" / "demo.toml").read_text(), sets)
    model = create(recipe.model)
    path = tmp_path / "model"
    path.write_bytes(encode_tensors(model.init(0)))
    trainer = Trainer(lambda _job, _wait: False)
    stream = f"replay:{tmp_path / 'u.data'},start=201,rate=0.001"
    opened = trainer.answer(Open(job=1, task=task_bytes(recipe), stream=stream, seed=1))
    assert isinstance(opened, Opened), opened
    request = Train(job=2, model=str(path), out=str(tmp_path / "update"), iterations=0)
    reply = trainer.answer(request)
    assert isinstance(reply, Trained)
    assert reply.stats.num_samples == 200
    assert reply.counters == {"unfit": 1}
    trainer.close()
