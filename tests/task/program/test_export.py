"""What cannot be a task is said in one line with the hint; what stays on a device stays."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.program import decode_program, encode_program, meta
from fedagent_task.program.export import build
from fedagent_task.program.source import TaskSource
from fedagent_task.program.spec import Input
from fedagent_task.program.torch_program import TorchProgram
from tests.fakes.torch_models import family

X, Y = torch.ones(4, 3), torch.zeros(4).long()
loss = nn.functional.cross_entropy


class Calls(nn.Module):
    """A dense layer, then what a test wants."""

    def __init__(self, then: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.dense = nn.Linear(3, 2)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.then(self.dense(x))


def _branches(x: torch.Tensor) -> torch.Tensor:
    return x if x.sum() > 0 else -x


def _without_gradient(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2


class _Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: object, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


class Packs(nn.Module):
    """A recurrent layer that takes rows of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.GRU(1, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x[..., None], torch.ones(len(x)), True)
        return self.rnn(packed)[1][0]


def normed(**how: Any) -> nn.Module:
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2, **how))


spectral, spectral_hook = nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (TaskSource(Calls(_Straight.apply), loss, (X, Y)), r"different gradient.*detach\(\)"),
        (TaskSource(Calls(torch.detach), loss, (X, Y)), "has no gradient, so nothing"),
        (TaskSource(nn.Linear(3, 2), loss, (X, Y), labels=("one",)), "name every class"),
        (TaskSource(nn.ReLU(), loss, (X, Y)), "no trainable parameter"),
        (
            TaskSource(Calls(torch.log), lambda o, _: (o.sqrt() - 9).sqrt().mean(), (X, Y)),
            "is nan for",
        ),
        (TaskSource(nn.EmbeddingBag(5, 2), loss, (X.long(), Y)), "use nn.Embedding"),
        (TaskSource(Calls(_branches), loss, (X, Y)), r"in test_export.py, line \d+; choose"),
        (TaskSource(Calls(lambda x: x[x > 0]), loss, (X, Y)), "give one batch that both take"),
        (TaskSource(Calls(lambda x: x[torch.nonzero(x)[:, 0]][:4]), loss, (X, Y)), "masks"),
        (TaskSource(Calls(_without_gradient), loss, (X, Y)), "detach"),
        (TaskSource(Calls(lambda x: torch.fft.fft(x).real), loss, (X, Y)), "with other operators"),
        (TaskSource(Calls(lambda x: x.view(4, 2)), loss, (X, Y)), "batches of 4 only"),
        (TaskSource(nn.Linear(3, 2).double(), loss, (X.double(), Y)), r"use .float\(\)"),
        (TaskSource(nn.Linear(3, 2), loss, (X, Y.int())), r"use .long\(\)"),
        (TaskSource(nn.Linear(4, 2), loss, (X, Y)), "mat1 and mat2"),
        (TaskSource(nn.Linear(3, 2), loss, (X,)), "example="),
        (TaskSource(nn.Linear(3, 2), loss, (X, Y[:3])), "same number of samples"),
        (TaskSource(nn.Linear(3, 2), loss, (X, Y[:, None].expand(4, 7))), "as inputs"),
        (TaskSource(nn.Linear(3, 2), lambda o, _: o, (X, Y)), "take the mean"),
        (TaskSource(nn.Linear(3, 2), nn.CrossEntropyLoss(reduction="sum"), (X, Y)), "is a sum"),
        (TaskSource(nn.Linear(3, 2), loss, (X, Y), local=("head.*",)), "fits no tensor"),
        (TaskSource("model", loss, (X, Y)), "not a torch.nn.Module"),
        (TaskSource(normed(momentum=None), loss, (X, Y)), r"1 \(BatchNorm1d\).*one.momentum = 0.1"),
        (TaskSource(spectral(nn.Linear(3, 2)), loss, (X, Y)), r"model \(.*Linear\): has spectral"),
        (TaskSource(spectral_hook(nn.Linear(3, 2)), loss, (X, Y)), r"model \(Linear\): has spec"),
        (TaskSource(Packs(), loss, (X, Y)), r"rnn \(GRU\): takes a packed.*self\.rnn\(x\).*gather"),
        (TaskSource(Calls(lambda x: {"y": x}), loss, (X, Y)), r"a dict; wrap it: .*\['y'\]"),
        (TaskSource(nn.LazyLinear(2), loss, (X, Y)), "has no weights yet; call the model once"),
    ],
)
def test_what_cannot_be_a_task_is_said_in_one_line(source: TaskSource, says: str) -> None:
    with pytest.raises(RecipeError, match=says) as caught:
        build(source)
    assert "\n" not in str(caught.value)


class Keeps(nn.Module):
    """Has one tensor under two names, and buffers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight
        self.last = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
        self.register_buffer("mask", torch.tensor([True, False, True]))
        self.register_buffer("ids", torch.tensor([2**40, 1]))
        self.register_buffer("unused", torch.ones(2, dtype=torch.uint8))
        self.register_buffer("passing", torch.ones(3), persistent=False)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.seen.add_(1)
        return self.last(self.b(self.a(x * self.mask) * self.passing) + 0 * self.ids[1])


def test_a_module_takes_all_that_is_its_own_back() -> None:
    source = TaskSource(Keeps(), nn.CrossEntropyLoss(torch.tensor([1.0, 2.0])), (X, Y))
    built = build(source)
    found = TorchProgram(decode_program(encode_program(built.program)))
    found.load(built.tensors)
    given = found.module.state_dict()
    own = Keeps()
    own.load_state_dict(given)
    for name, value in source.model.state_dict().items():
        assert torch.equal(own.state_dict()[name], value), name
        assert given[name].dtype == value.dtype


def _contrast(output: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    rows = nn.functional.normalize(output, dim=1)
    return loss(rows @ rows.T, torch.arange(output.shape[0]))


@pytest.mark.parametrize(
    ("model", "of", "needs"),
    [
        (normed(), loss, "batch norm"),
        (normed(track_running_stats=False), loss, "batch norm"),
        (nn.Linear(3, 2), lambda o, y: loss(o, y) + o.var(0).mean(), "a variance"),
        (nn.Linear(3, 2), lambda o, y: loss(o, y) + o.std(0).mean(), "a deviation"),
        (nn.Sequential(nn.GroupNorm(3, 3), nn.Linear(3, 2)), loss, "group norm"),
        (nn.Linear(3, 2), _contrast, "the loss"),
        (nn.Sequential(nn.Unflatten(1, (1, 3)), nn.BatchNorm1d(1), nn.Flatten()), loss, ""),
        (nn.Linear(3, 2), loss, ""),
    ],
)
def test_a_program_says_what_of_it_needs_two_samples(
    model: nn.Module, of: Callable[..., torch.Tensor], needs: str
) -> None:
    torch.manual_seed(0)
    assert build(TaskSource(model, of, (torch.rand(4, 3), Y))).program.pairs == needs


def test_building_changes_nothing_of_the_model() -> None:
    source = family("mlp")
    before = {name: value.clone() for name, value in source.model.state_dict().items()}
    source.model.train()
    build(source)
    assert source.model.training
    assert all(
        torch.equal(value, before[name]) for name, value in source.model.state_dict().items()
    )


class Writes(nn.Module):
    """Changes its input in place, and keeps what it has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ReLU(inplace=True)
        self.dense = nn.Linear(3, 2)
        self.seen: torch.Tensor
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scale", torch.full((3,), 2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.first(x) * self.scale
        if self.training:
            self.seen += rows.detach().sum(0)
        return self.dense(rows - self.seen)


def test_a_batch_is_never_written_to_and_what_a_module_writes_is_kept() -> None:
    x = torch.randn(4, 3)
    model = Writes()
    built = build(TaskSource(model, loss, (x.clone(), Y)))
    assert {one.name: one.role for one in built.program.tensors} == {
        "dense.bias": "train",
        "dense.weight": "train",
        "seen": "mean",
    }
    program = TorchProgram(built.program)
    program.load(built.tensors)
    before = x.clone()
    for _ in range(2):
        ours = program.loss(([x], Y))
        expected = loss(model.train()(x.clone()), Y)
        torch.testing.assert_close(ours, expected)
    assert torch.equal(x, before)
    torch.testing.assert_close(program.buffers["seen"], model.seen)


def test_norms_stay_on_the_device_with_their_statistics() -> None:
    source = family("mlp")
    built = build(TaskSource(source.model, source.loss, source.example, local=("norms",)))
    local = {one.name: one.learnt for one in built.program.of_roles("local")}
    assert local == {
        "body.1.weight": True,
        "body.1.bias": True,
        "body.1.running_mean": False,
        "body.1.running_var": False,
        "body.1.num_batches_tracked": False,
    }
    assert sorted(one.name for one in built.program.of_roles("train", "mean", "latest")) == [
        *("body.0.bias", "body.0.weight", "body.4.bias", "body.4.weight"),
    ]


def test_a_batch_over_the_memory_is_refused_before_anything_is_made() -> None:
    built = build(family("two-inputs"))
    program = TorchProgram(built.program, limit=300_000)
    assert 0 < program.check(4, training=True) < 300_000
    with pytest.raises(TaskFormatError, match=r"train node \d+ \(.*\): would hold \d+ bytes"):
        program.check(1000, training=True)
    with pytest.raises(TaskFormatError, match="tensors: would hold"):
        TorchProgram(built.program, limit=100)


def test_two_steps_of_a_sequence_stand_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    built = build(family("gru"))
    wide = replace(built.program, inputs=(Input("x", 0, (8, 4), "float32"),))
    short = TorchProgram(wide).check(8, training=True)
    monkeypatch.setattr(meta, "STEPS", 1000)
    whole = TorchProgram(wide).check(8, training=True)
    assert whole <= short <= 1.25 * whole


def test_the_module_of_a_program_is_trained_by_a_loop_of_ones_own() -> None:
    source = family("mlp")
    built = build(source)
    program = TorchProgram(built.program)
    program.load(built.tensors)
    x, y = source.example
    assert isinstance(x, torch.Tensor)
    assert sorted(program.module.state_dict()) == sorted(source.model.state_dict())
    torch.manual_seed(0)
    output = program.module(x)
    source.loss(output, y).backward()
    torch.manual_seed(0)
    expected = source.model(x)
    torch.testing.assert_close(output, expected)
    assert all(one.grad is not None for one in program.module.parameters())
    torch.testing.assert_close(program.module.eval()(x), source.model.eval()(x))


@pytest.mark.parametrize("dim", [0, 1, None])
def test_weight_norm_is_learnt_as_in_python(dim: int | None) -> None:
    module = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2), dim=dim)
    program, tensors = (one := build(TaskSource(module, loss, (X, Y)))).program, one.tensors
    ours = TorchProgram(program)
    ours.load(tensors)
    ours.loss(([X], Y)).backward()
    loss(module(X), Y).backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(ours.parameters[name].grad, parameter.grad)
