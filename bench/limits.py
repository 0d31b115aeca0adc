"""Limits in seconds of what the tests hold in counts: each on a machine that does nothing else.

python -m bench limits
"""

import math
import multiprocessing
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from fedagent_agent.context import Context
from fedagent_agent.machine import MachineProbe
from fedagent_agent.trainer.frames import Open, Train, Trained
from fedagent_agent.trainer.training import Trainer
from fedagent_edge.core.neighbours import BLOCK, near
from fedagent_protocol.tensors import encode_tensors
from fedagent_task.models import create
from fedagent_task.recipe import parse_recipe, task_bytes
from fedagent_testbed.local import RoleProcess

Row = dict[str, object]
DEMO = Path(__file__).parents[1] / "deploy" / "recipes" / "demo.toml"
STREAM = "digits:start=1000,rate=0.000001"


def load_limit(beside: int) -> Row:
    """Train far longer than the load limit allows, beside processes that compute."""
    recipe = parse_recipe(DEMO.read_text(), ("learner.steps=4",))
    trainer, limit_s, spent = Trainer(lambda _job, _wait: False), 0.2, []
    trainer.answer(Open(job=1, task=task_bytes(recipe), stream=STREAM, seed=1))
    with tempfile.TemporaryDirectory() as folder, _busy(beside):
        model = Path(folder, "model")
        model.write_bytes(encode_tensors(create(recipe.model).init(0)))
        for job in range(2, 12):
            began = time.process_time()
            reply = trainer.answer(
                Train(
                    job=job,
                    model=str(model),
                    out=str(Path(folder, "update")),
                    iterations=1_000_000,
                    load_limit_s=limit_s,
                )
            )
            assert isinstance(reply, Trained), reply
            spent.append(max(time.process_time() - began, reply.train_s))
    what = f"seconds of a training with a load limit of {limit_s} s, {beside} busy beside it"
    return _row(what, float(np.median(spent)), limit_s + 0.05)


def agent_end(number: signal.Signals) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        config: dict[str, object] = {
            "data_dir": str(Path(folder, "d")),
            "stream": "digits",
            "discovery": "loopback",
            "json_events": True,
            "watch_parent": True,
            "edges": ["127.0.0.1:9"],
        }
        agent = RoleProcess(name="one", role="agent", config=config, log=Path(folder, "log"))
        agent.wait("ready")
        began = time.monotonic()
        agent.popen.send_signal(number)
        agent.wait_exit()
        took = time.monotonic() - began
        agent.close()
    return _row(f"an agent ends after {number.name}", took, 2.0)


def machine() -> Row:
    """Read what an agent reports of its machine."""
    context = Context(MachineProbe())
    context.read(0.0)
    began = time.process_time()
    for second in range(1, 21):
        context.read(float(second))
    took = (time.process_time() - began) / 20
    return _row("processor seconds of a look at the machine", took, 0.02)


def neighbours() -> Row:
    """Draw who talks with whom among many."""
    rng = np.random.default_rng(1)
    places = {f"a{i}": (float(x), float(y)) for i, (x, y) in enumerate(rng.random((3 * BLOCK, 2)))}
    began = time.process_time()
    near(places, 4)
    took = time.process_time() - began
    return _row(f"neighbours of {len(places)} agents, processor seconds", took, 3.0)


def rows() -> Iterator[Row]:
    made: tuple[Callable[[], Row], ...] = (
        lambda: load_limit(0),
        lambda: load_limit(2),
        lambda: agent_end(signal.SIGTERM),
        lambda: agent_end(signal.SIGINT),
        machine,
        neighbours,
    )
    for row in made:
        yield row()


def _row(what: str, seconds: float, bar: float) -> Row:
    assert math.isfinite(seconds)
    return {"bench": "limits", "what": what, "s": seconds, "bar": bar, "met": seconds <= bar}


@contextmanager
def _busy(processes: int) -> Iterator[None]:
    """Keep the processors busy, beside this process."""
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=_spin, daemon=True) for _ in range(processes)]
    for other in others:
        other.start()
    time.sleep(0.3)
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.join()


def _spin() -> None:
    while True:
        pass
