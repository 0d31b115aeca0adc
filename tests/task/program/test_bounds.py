"""What a program may not do although each of its nodes is on the list: seen before it runs."""

import numpy as np
import pytest

from fedagent_task.errors import TaskFormatError
from fedagent_task.program.codec import decode_program, encode_program
from fedagent_task.program.spec import (
    Argument,
    Graph,
    Input,
    Node,
    Program,
    Ref,
    Role,
    Shape,
    Tensor,
)
from fedagent_task.program.torch_program import TorchProgram

W, F, X, FIRST = 0, 1, 2, 4
SUM = Node("sum", (Ref(X),))


def program(
    train: tuple[Node, ...],
    evaluate: tuple[Node, ...] = (SUM,),
    *,
    weight: Shape = (1,),
    row: Shape = (4,),
    role: Role = "frozen",
) -> TorchProgram:
    """A weight, another tensor, and an input; each graph's output is its last node."""
    tensors = (
        Tensor("w", "float32", weight, "train", learnt=True),
        Tensor("f", "int64", (4,), role),
    )
    one, two = (
        Graph(part, FIRST + len(part) - 1, FIRST + len(part) - 1) for part in (train, evaluate)
    )
    made = Program(1, (Input("x", 0, row, "float32"),), None, tensors, (), one, two)
    return TorchProgram(decode_program(encode_program(made)), limit=64_000_000)


def test_no_view_of_a_frozen_tensor_is_written_to() -> None:
    view = (Node("view", (Ref(F), [4])), Node("add_.Tensor", (Ref(FIRST), 1)))
    loss = (Node("mul.Tensor", (Ref(X), Ref(W))), Node("sum", (Ref(FIRST + 2),)))
    with pytest.raises(TaskFormatError, match="train: writes to what must not change"):
        program(view + loss).check(2, training=True)
    assert program(view + loss, role="latest").check(2, training=True)


def test_scoring_writes_to_no_weight() -> None:
    view = (Node("view", (Ref(W), [1])), Node("add_.Tensor", (Ref(FIRST), 1.0)))
    loss = Node("sum", (Ref(X),))
    with pytest.raises(TaskFormatError, match="evaluate: writes to what must not change"):
        program((SUM,), (*view, loss)).check(2, training=False)


@pytest.mark.parametrize("transposed", [False, True])
def test_what_a_convolution_unfolds_in_double_precision_counts(transposed: bool) -> None:
    first = FIRST
    double: tuple[Argument, ...] = (Ref(first), Ref(first + 1), None, [1, 1], [0, 0])
    conv = Node("conv2d", (*double, [1, 1], 1))
    if transposed:
        conv = Node("conv_transpose2d.input", (*double, [0, 0], 1, [1, 1]))

    def nodes(dtype: str) -> tuple[Node, ...]:
        casts = [Node("to.dtype", (Ref(v), dtype, None, False, None)) for v in (X, W)]
        back = Node("to.dtype", (Ref(first + 2), "float32", None, False, None))
        return (*casts, conv, back, Node("sum", (Ref(first + 3),)))

    size = (16, 1, 31, 31) if transposed else (1, 16, 31, 31)
    assert program(nodes("float32"), weight=size, row=(16, 64, 64)).check(1, training=True)
    with pytest.raises(TaskFormatError, match="would hold"):
        program(nodes("float64"), weight=size, row=(16, 64, 64)).check(8, training=True)


def test_no_whole_number_is_cut_off() -> None:
    """The least of them by -1 ends the process by a signal."""
    cut = Node("div.Tensor_mode", (Ref(F), -1, "trunc"))
    cast = Node("to.dtype", (Ref(FIRST), "float32", None, False, None))
    loss = (Node("mul.Tensor", (Ref(FIRST + 1), Ref(W))), Node("sum", (Ref(FIRST + 2),)))
    with pytest.raises(TaskFormatError, match="floor"):
        program((cut, cast, *loss)).check(2, training=True)
    floor = Node("div.Tensor_mode", (Ref(F), -1, "floor"))
    made = program((floor, cast, *loss))
    made.load({"w": np.ones(1, np.float32), "f": np.full(4, -(2.0**63), np.float32)})
    made.loss(made.inputs_of(np.zeros((2, 4)), np.zeros(2)))


@pytest.mark.parametrize(
    "names", [("loss.weight", "program"), ("a", "a.b"), ("forward", "training")]
)
def test_tensors_have_whatever_names_their_makers_gave(names: tuple[str, str]) -> None:
    tensors = tuple(Tensor(name, "float32", (1,), "train", learnt=True) for name in names)
    graph = Graph((Node("mul.Tensor", (Ref(X), Ref(W))), Node("sum", (Ref(FIRST),))), FIRST, 5)
    made = Program(1, (Input("x", 0, (4,), "float32"),), None, tensors, (), graph, graph)
    found = TorchProgram(decode_program(encode_program(made)))
    assert {name for name, _ in found.module.named_parameters()} == set(names)
    batch = found.inputs_of(np.ones((2, 4)), np.zeros(2))
    found.backward(found.module.loss(batch))
    assert found.module(*batch[0]).shape == (2, 4)
