"""Programs as bytes: what is well formed comes back, what is not is one typed error."""

import zlib
from typing import Any

import msgspec
import pytest

from fedagent_task.errors import TaskFormatError
from fedagent_task.program import Program, decode_program, encode_program
from fedagent_task.program.codec import MAX_PLAIN_BYTES
from fedagent_task.program.operators import operators
from fedagent_task.program.spec import Constant, Graph, Input, Node, Ref, Target, Tensor

W, B, X, Y = 0, 1, 2, 3
OUTPUT, LOSS = 4, 5
NODES = (
    Node("linear", (Ref(X), Ref(W), Ref(B))),
    Node("cross_entropy_loss", (Ref(OUTPUT), Ref(Y))),
)


def linear(**changes: Any) -> Program:
    """A softmax regression of three columns as a program."""
    graph = Graph(NODES, OUTPUT, LOSS)
    keys: dict[str, Any] = {
        "version": 1,
        "inputs": (Input("x", 0, (3,), "float32"),),
        "target": Target("int64"),
        "tensors": (
            Tensor("weight", "float32", (2, 3), "train", learnt=True),
            Tensor("bias", "float32", (2,), "train", learnt=True),
        ),
        "constants": (),
        "train": graph,
        "evaluate": graph,
        "link": "softmax",
    }
    return Program(**{**keys, **changes})


def with_nodes(*nodes: Node) -> Program:
    """The same with other nodes; the loss is the last of them."""
    return linear(train=Graph(nodes, OUTPUT, 3 + len(nodes)))


def packed(program: Program) -> bytes:
    """Encode without any check, as a stranger would."""
    return zlib.compress(msgspec.msgpack.encode(program))


def test_a_program_comes_back_and_has_one_form() -> None:
    body = encode_program(linear())
    assert decode_program(body) == linear()
    assert encode_program(decode_program(body)) == body
    assert len(body) < 200


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (with_nodes(Node("system", (Ref(X),))), "not on the list"),
        (with_nodes(Node("relu", (Ref(X), Ref(X)))), "1 arguments at most"),
        (with_nodes(Node("relu", (Ref(9),))), "does not fit"),
        (with_nodes(Node("relu", (Ref(4),))), "does not fit"),  # itself
        (with_nodes(Node("relu", (3,))), "does not fit"),
        (with_nodes(Node("gelu", (Ref(X), "os.system"))), "does not fit"),
        (with_nodes(Node("einsum", ("a;b", [Ref(X)]))), "does not fit"),
        (with_nodes(Node("view", (Ref(X), [2**62]))), "does not fit"),
        (with_nodes(Node("split.Tensor", (Ref(X), 0))), "does not fit"),
        (with_nodes(Node("sum", (Ref(X), "complex64"))), "does not fit"),
        (with_nodes(Node("add_.Tensor", (Ref(W), 1))), "must not change"),
        (with_nodes(Node("add_.Tensor", (Ref(X), 1))), "must not change"),
        (with_nodes(Node("sym_size.int", (Ref(X), 0))), "no tensor"),
        (linear(train=Graph((), 99, 99)), "no tensor"),
        (linear(target=None), "does not fit"),
        (linear(tensors=(Tensor("a", "float32", (), "train", learnt=True),) * 2), "twice"),
        (linear(tensors=(Tensor("a", "float32", (2**31, 2**31), "mean"),)), "the limit is"),
        (linear(tensors=(Tensor("a", "int64", (), "train", learnt=True),)), "int64"),
        (linear(tensors=(Tensor("a", "float32", (), "train"),)), "not learnt"),
        (linear(tensors=(Tensor("../a", "float32", (), "mean"),)), "regex"),
        (linear(inputs=(Input("x", 0, (2**31, 2**31), "float32"),)), "the limit is"),
        (linear(constants=(Constant("int64", (2,), b"12345678"),)), "bytes of its shape"),
        (linear(constants=(Constant("uint8", (65536,), bytes(65536)),) * 2), "together"),
    ],
)
def test_what_is_not_well_formed_is_refused_by_name(program: Program, says: str) -> None:
    with pytest.raises(TaskFormatError, match=says):
        decode_program(packed(program))


def test_a_bomb_is_not_unpacked() -> None:
    with pytest.raises(TaskFormatError, match="cut off, or over"):
        decode_program(zlib.compress(bytes(50 * MAX_PLAIN_BYTES), 9))


def test_lists_in_lists_have_no_form() -> None:
    deep: Any = [1]
    for _ in range(500):
        deep = [deep]
    with pytest.raises(TaskFormatError):
        decode_program(packed(with_nodes(Node("view", (Ref(X), deep)))))


def test_every_operator_is_one_that_torch_knows() -> None:
    from fedagent_task.program.torch_operators import function_of

    for name, operator in operators().items():
        schema = getattr(function_of(name), "_schema", None)
        if schema is not None:
            named = {one.name for one in schema.arguments if one.kwarg_only}
            assert named.issuperset(operator.named), name
            positional = len(operator.kinds) - len(operator.named)
            assert positional <= sum(not one.kwarg_only for one in schema.arguments), name
            writes = [one for one in schema.arguments if one.alias_info and one.alias_info.is_write]
            assert bool(writes) == operator.in_place, name
            assert writes in ([], [schema.arguments[0]]), name
