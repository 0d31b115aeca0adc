"""Every family of models: built, written, read, trained; what comes out is what PyTorch gives."""

import copy
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from fedagent_task.models import create
from fedagent_task.program.codec import encode_program
from fedagent_task.program.export import Built, build
from fedagent_task.program.source import TaskSource
from fedagent_task.program.torch_program import TorchProgram
from fedagent_task.task_file import TaskFile, read_task_file, task_of_program, write_task_file
from tests.fakes.torch_models import FAMILIES, family

STEPS = 3
ALIKE = ("resnet18-group", "mobilenet", "lstm")
"""Families whose operators others have too."""


@cache
def made(name: str) -> tuple[TaskSource, Built]:
    source = family(name)
    return source, build(source)


def task_of(built: Built) -> TaskFile:
    return task_of_program(encode_program(built.program), built.tensors, classes=built.classes)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.nightly if name in ALIKE else ()) for name in FAMILIES],
)
def test_a_trained_program_is_what_plain_pytorch_trains(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    source, built = made(name)
    write_task_file(path := tmp_path / "a.fedtask", task_of(built))
    task = read_task_file(path)
    program = TorchProgram(task.program)
    program.load(task.first)
    program.load(task.once)
    plain = copy.deepcopy(source.model).train()

    batch = (list(source.example[:-1]), source.example[-1])
    ours = torch.optim.SGD(program.parameters.values(), lr=0.05, momentum=0.9)
    learnt = [one for one in plain.parameters() if one.requires_grad]
    theirs = torch.optim.SGD(learnt, lr=0.05, momentum=0.9)
    assert len(program.parameters) == len(learnt)
    for step in range(STEPS):
        torch.manual_seed(step)
        ours.zero_grad()
        loss = program.loss(batch)
        loss.backward()
        ours.step()
        torch.manual_seed(step)
        theirs.zero_grad()
        output = plain(*source.example[:-1])
        given = source.example[-1:] if source.example[-1] is not None else source.example[:-1]
        expected = source.loss(output, *given)
        expected.backward()
        theirs.step()
        assert float(loss.detach()) == pytest.approx(float(expected.detach()), abs=1e-5)

    state = plain.state_dict()
    for key, value in {**program.parameters, **program.buffers}.items():
        np.testing.assert_allclose(value.detach(), state[key], atol=1e-5, err_msg=key)
    # Statistics of batches have moved, and are in what is sent.
    moving = {one.name for one in built.program.of_roles("mean", "latest")}
    assert moving == {key for key, _ in plain.named_buffers()} - {"positions"}
    manifest = create(task.model).manifest()
    sent = program.tensors()
    assert {one.name: one.shape for one in manifest.specs} == {k: v.shape for k, v in sent.items()}
    scored = plain.eval()(*source.example[:-1])
    output, _ = program.evaluate(batch)
    np.testing.assert_allclose(output, scored.detach(), atol=1e-5)


def test_only_adapters_travel_and_the_base_is_given_once() -> None:
    _, built = made("lora")
    task = task_of(built)
    assert sorted(task.first) == ["0.a", "0.b", "2.a", "2.b"]
    assert sorted(task.once) == ["0.base.bias", "0.base.weight", "2.base.bias", "2.base.weight"]


def test_tied_weights_are_one_tensor() -> None:
    _, built = made("transformer")
    (tied,) = (one for one in built.program.tensors if one.tied)
    assert {tied.name, *tied.tied} == {"embed.weight", "head.weight"}
