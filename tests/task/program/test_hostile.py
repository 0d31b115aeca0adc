"""Task files that somebody has changed: trained or refused by our own errors, nothing executed."""

import warnings
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any

import pytest
from msgspec.structs import replace

from fedagent_task.errors import TaskFormatError
from fedagent_task.program.spec import Node, Program, Ref
from fedagent_task.program.torch_program import TorchProgram
from fedagent_task.task_file import encode_task
from tests.fakes.hostile_tasks import LIMIT, Mutator, bomb, tried
from tests.task.program.test_families import made, task_of

TRIALS = 80


@pytest.mark.parametrize("name", ["lora", "two-inputs"])
def test_a_changed_file_is_trained_or_refused_and_never_executed(name: str, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    body = encode_task(task_of(made(name)[1]))
    assert tried(body) == "trained"
    ends = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of shapes that it will refuse one day
        for seed in range(TRIALS):
            ends.add(tried(Mutator(seed, body, bomb(mark)).mutated()))
    assert ends == {"trained", "program", "file"}
    assert not mark.exists()


def _with(program: Program, op: str, args: tuple[Any, ...]) -> Program:
    """The same with other arguments of one operator."""
    nodes = tuple(Node(op, args) if one.op == op else one for one in program.train.nodes)
    return replace(program, train=replace(program.train, nodes=nodes))


@pytest.mark.parametrize(
    ("family", "op", "args", "says"),
    [
        ("gru", "zeros", ([2**20], "float32"), "makes 1048576 parts"),
        ("gru", "zeros", ([2**31, 2**9], "float32"), "would hold"),
        ("gru", "zeros", ([2**40, 2**40], "float32"), "zeros"),
        ("gru", "slice.Tensor", (Ref(0), 0, 0, 0), "train node"),
        ("two-inputs", "max_pool2d", (Ref(5), [2**40, 2**40]), "max_pool2d"),
        ("two-inputs", "embedding", (Ref(0), Ref(5)), "embedding"),
    ],
)
def test_what_would_take_memory_is_refused_by_the_name_of_its_node(
    family: str, op: str, args: tuple[Any, ...], says: str
) -> None:
    program = TorchProgram(_with(made(family)[1].program, op, args), limit=LIMIT)
    before = getrusage(RUSAGE_SELF).ru_maxrss
    with pytest.raises(TaskFormatError, match=says):
        program.check(2, training=True)
    assert getrusage(RUSAGE_SELF).ru_maxrss < before + 100_000
