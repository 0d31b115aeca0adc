"""What a program is: tensors, inputs and two graphs of operators, all of it data.

Values are numbered: first the tensors, then the inputs, the target, the constants, and then one
for each node of the graph at hand.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from msgspec import Meta, Struct

MAX_TENSORS = 2048
MAX_INPUTS = 16
MAX_CONSTANTS = 1024
MAX_NODES = 8192
MAX_RANK = 8
MAX_LIST = 1024
"""Items of a list in an argument."""
MAX_CONSTANT_BYTES = 64 * 1024
"""Constants of a program together; larger ones are tensors of role frozen."""

Role = Literal["train", "mean", "latest", "local", "frozen"]
"""What becomes of a tensor: averaged (`train` is learnt, `mean` a buffer), replaced by the newest
update's, kept on the device, or never changed."""

TRAVELS: tuple[Role, ...] = ("train", "mean", "latest")
"""Roles of what a model file holds."""

DType = Literal["float32", "int64", "int32", "uint8", "bool"]
BYTES: dict[DType, int] = {"float32": 4, "int64": 8, "int32": 4, "uint8": 1, "bool": 1}
InputDType = Literal["float32", "int64", "bool"]
Link = Literal["", "softmax", "exp", "sigmoid"]
"""What makes probabilities of an output: of logits a softmax or a sigmoid; nothing if unknown."""

Size = Annotated[int, Meta(ge=0, le=2**31)]
Index = Annotated[int, Meta(ge=0, le=2**31)]
Shape = Annotated[tuple[Size, ...], Meta(max_length=MAX_RANK)]
Name = Annotated[str, Meta(pattern=r"^(loss/)?[A-Za-z0-9_.\-]{1,200}\Z")]
LOSS = "loss/"
"""Before the name of a tensor that is the loss's, and not the model's."""


class _Form(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a program."""


class Tensor(_Form, frozen=True):
    """A parameter or a buffer; `tied` are other names of the same one.

    Of the role `local`, `learnt` tells a parameter from a buffer.
    """

    name: Name
    dtype: DType
    shape: Shape
    role: Role
    learnt: bool = False
    tied: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()

    @property
    def names(self) -> tuple[Name, ...]:
        """Return all of its names."""
        return self.name, *self.tied


class Input(_Form, frozen=True):
    """Columns ``[start, start + product(shape))`` of a sample's row, [n, *shape] for a batch."""

    name: Name
    start: Index
    shape: Shape
    dtype: InputDType


class Target(_Form, frozen=True):
    """The label of a sample, [n, *shape]: a class index (int64) or a number."""

    dtype: Literal["int64", "float32"]
    shape: Annotated[tuple[Literal[1], ...], Meta(max_length=2)] = ()


class Constant(_Form, frozen=True):
    """A tensor as it is, its bytes little-endian in rows; `names` as the model keeps it."""

    dtype: DType
    shape: Shape
    data: Annotated[bytes, Meta(max_length=MAX_CONSTANT_BYTES)]
    names: Annotated[tuple[Name, ...], Meta(max_length=64)] = ()


class Ref(Struct, frozen=True, forbid_unknown_fields=True):
    """A value by its number."""

    v: Index


Scalar = None | bool | int | float | Annotated[str, Meta(max_length=200)]
Argument = Scalar | Ref | Annotated[list[Scalar | Ref], Meta(max_length=MAX_LIST)]
"""None deeper than a list: what nests is refused by its form."""


class Node(_Form, frozen=True):
    """One operator applied; `args` in the order of `operators`, what is not given at the end."""

    op: Annotated[str, Meta(max_length=64)]
    args: Annotated[tuple[Argument, ...], Meta(max_length=24)]


class Graph(_Form, frozen=True):
    """Nodes in the order in which they run, and the values that they are run for."""

    nodes: Annotated[tuple[Node, ...], Meta(max_length=MAX_NODES)]
    output: Index
    loss: Index


class Program(_Form, frozen=True):
    """A model with its loss: how it is trained, and how it is scored."""

    version: Literal[1]
    inputs: Annotated[tuple[Input, ...], Meta(min_length=1, max_length=MAX_INPUTS)]
    target: Target | None
    tensors: Annotated[tuple[Tensor, ...], Meta(max_length=MAX_TENSORS)]
    constants: Annotated[tuple[Constant, ...], Meta(max_length=MAX_CONSTANTS)]
    train: Graph
    evaluate: Graph
    link: Link = ""
    pairs: Annotated[str, Meta(pattern=r"^[a-z0-9_ ]{0,64}\Z")] = ""
    """What of it needs two samples to learn from, ``batch norm``; empty if one will do."""

    @property
    def first_input(self) -> int:
        """Number of the first input's value."""
        return len(self.tensors)

    @property
    def target_value(self) -> int:
        """Number of the target's value, which is nothing where there is no target."""
        return len(self.tensors) + len(self.inputs)

    @property
    def first_constant(self) -> int:
        """Number of the first constant's value."""
        return self.target_value + 1

    @property
    def first_node(self) -> int:
        """Number of the first node's value, in either graph."""
        return self.first_constant + len(self.constants)

    @property
    def held(self) -> list[Tensor | Constant]:
        """Tensors, then constants."""
        return [*self.tensors, *self.constants]

    def named(self) -> Iterator[tuple[str, Tensor | Constant]]:
        """Yield what the author's modules keep, each under all of its names."""
        return ((name, one) for one in self.held for name in one.names)

    def of_roles(self, *roles: Role) -> tuple[Tensor, ...]:
        """Return the tensors of these roles."""
        return tuple(tensor for tensor in self.tensors if tensor.role in roles)
