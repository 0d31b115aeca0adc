"""Programs as bytes: zlib of MessagePack, read under limits before anything is made of them."""

import math
import zlib
from functools import lru_cache
from typing import NoReturn

import msgspec

from fedagent_task.errors import TaskFormatError
from fedagent_task.recipe.shapes import MAX_PARAMETERS, MAX_PROGRAM_BYTES

from .operators import DTYPES, MAX_INTEGER, WORDS, operators
from .spec import BYTES, MAX_CONSTANT_BYTES, Argument, Graph, Node, Program, Ref, Shape

MAX_PLAIN_BYTES = 1024 * 1024
"""Largest program once it is unpacked."""
MAX_COLUMNS = 4 * 1024 * 1024
"""Widest row of a sample."""

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Program)
_EQUATION = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ,->. ")


def encode_program(program: Program) -> bytes:
    """Return the program as bytes, the same for the same program.

    Raises:
        TaskFormatError: It is not well formed, or too large.
    """
    plain = _encoder.encode(program)
    if len(plain) > MAX_PLAIN_BYTES:
        raise TaskFormatError("program", f"is {len(plain)} bytes, the limit is {MAX_PLAIN_BYTES}")
    packed = zlib.compress(plain, 9)
    decode_program(packed)
    return packed


@lru_cache(maxsize=4)
def decode_program(data: bytes) -> Program:
    """Read a program that somebody sent, or raise `TaskFormatError`."""
    if len(data) > MAX_PROGRAM_BYTES:
        raise TaskFormatError("program", f"is {len(data)} bytes, the limit is {MAX_PROGRAM_BYTES}")
    unpack = zlib.decompressobj()
    try:
        plain = unpack.decompress(data, MAX_PLAIN_BYTES)
        if not unpack.eof or unpack.unused_data:
            raise TaskFormatError("program", f"is cut off, or over {MAX_PLAIN_BYTES} bytes")
        program = _decoder.decode(plain)
    except zlib.error as error:
        raise TaskFormatError("program", "the bytes are not packed") from error
    except msgspec.ValidationError as error:
        raise TaskFormatError("program", str(error)[:200]) from error
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise TaskFormatError("program", "the bytes are no MessagePack") from error
    _check_tensors(program)
    _check_values(program)
    for name, graph in (("train", program.train), ("evaluate", program.evaluate)):
        _Kinds(program, name).check(graph)
    return program


def _check_values(program: Program) -> None:
    if (size := sum(elements(one.shape) for one in program.inputs)) > MAX_PARAMETERS:
        raise TaskFormatError("inputs", f"hold {size} numbers, the limit is {MAX_PARAMETERS}")
    if not 1 <= (width := columns(program)) <= MAX_COLUMNS:
        raise TaskFormatError("inputs", f"are {width} columns of a row, not 1 to {MAX_COLUMNS}")
    if sum(len(one.data) for one in program.constants) > MAX_CONSTANT_BYTES:
        raise TaskFormatError("constants", f"are over {MAX_CONSTANT_BYTES} bytes together")
    for constant in program.constants:
        if len(constant.data) != elements(constant.shape) * BYTES[constant.dtype]:
            raise TaskFormatError("constants", "one has not the bytes of its shape")
    shapes = [one.shape for one in program.tensors]
    shapes += [one.shape for one in program.inputs]
    shapes += [one.shape for one in program.constants]
    for shape in shapes:
        # Also of a tensor of nothing: the steps between its rows are numbers too.
        if math.prod(max(size, 1) for size in shape) > MAX_INTEGER:
            raise TaskFormatError("program", f"has a shape that is too large: {list(shape)}")


def _check_tensors(program: Program) -> None:
    names = [name for name, _ in program.named()]
    if len(set(names)) != len(names):
        raise TaskFormatError("tensors", "a name is there twice")
    if (size := sum(elements(tensor.shape) for tensor in program.tensors)) > MAX_PARAMETERS:
        raise TaskFormatError("tensors", f"hold {size} numbers, the limit is {MAX_PARAMETERS}")
    for tensor in program.tensors:
        if tensor.role == "train" and not tensor.learnt:
            raise TaskFormatError(tensor.name, "is of role train, but not learnt")
        if tensor.learnt and tensor.role not in ("train", "local"):
            raise TaskFormatError(tensor.name, f"is learnt, but of role {tensor.role}")
        if tensor.learnt and tensor.dtype != "float32":
            raise TaskFormatError(tensor.name, f"is learnt, but {tensor.dtype}")


def elements(shape: Shape) -> int:
    """Return how many numbers a tensor holds."""
    return math.prod(shape)


def columns(program: Program) -> int:
    """Return the width of a sample's row: where the last input ends."""
    return max(one.start + elements(one.shape) for one in program.inputs)


class _Kinds:
    """What each value of a graph is, so that every argument can be held against its operator."""

    def __init__(self, program: Program, name: str) -> None:
        self._name = name
        self._tensors = program.tensors
        target = "T" if program.target else "_"
        self._kinds = [
            *("T" * program.target_value),
            target,
            *("T" * len(program.constants)),
        ]
        self._first = program.first_node
        self._changing = {
            index
            for index, tensor in enumerate(program.tensors)
            if not tensor.learnt and tensor.role != "frozen"
        }

    def check(self, graph: Graph) -> None:
        for index, node in enumerate(graph.nodes):
            self._kinds.append(self._result(index, node))
        for value in (graph.output, graph.loss):
            if value >= len(self._kinds) or self._kinds[value] != "T":
                raise TaskFormatError(self._name, "its output or loss is no tensor")

    def _result(self, index: int, node: Node) -> str:
        operator = operators().get(node.op)
        if operator is None:
            self._refuse(index, node, "is not on the list of operators")
        if len(node.args) > len(operator.kinds):
            self._refuse(index, node, f"takes {len(operator.kinds)} arguments at most")
        by_name = len(operator.kinds) - len(operator.named)
        for place, (argument, kind) in enumerate(zip(node.args, operator.kinds, strict=False)):
            if argument is None and place >= by_name:
                continue
            if not self._fits(argument, kind, equation=node.op == "einsum"):
                self._refuse(index, node, f"argument {place} does not fit")
        if operator.in_place:
            first = node.args[0] if node.args else None
            fixed = isinstance(first, Ref) and first.v < self._first
            if fixed and isinstance(first, Ref) and first.v not in self._changing:
                self._refuse(index, node, "writes to what must not change")
        return operator.result

    def _fits(self, argument: Argument, kind: str, *, equation: bool) -> bool:
        if argument is None:
            # What is not given at the end of torch's arguments may be given as nothing.
            return kind.endswith("?") or kind == "_"
        letter = kind[0]
        if isinstance(argument, list):
            inner = {"L": "T", "N": "T?", "I": "i", "P": "p", "F": "n"}.get(letter)
            return inner is not None and all(
                self._fits(item, inner, equation=False) for item in argument
            )
        if isinstance(argument, Ref):
            return argument.v < len(self._kinds) and self._kinds[argument.v] in _GIVES[letter]
        if isinstance(argument, str):
            if letter == "d":
                return argument in DTYPES
            known = _EQUATION.issuperset(argument) if equation else argument in WORDS
            return letter == "s" and known
        if isinstance(argument, bool):
            return letter in "bnA"
        if isinstance(argument, int):
            least = 1 if letter in "pP" else -MAX_INTEGER
            return letter in "ipnAIP" and least <= argument <= MAX_INTEGER
        return letter in "nA" and not math.isnan(argument)

    def _refuse(self, index: int, node: Node, why: str) -> NoReturn:
        raise TaskFormatError(f"{self._name} node {index} ({node.op})", why)


_GIVES = {
    "T": "T",
    "A": "Tin",
    "L": "L",
    "i": "i",
    "p": "i",
    "n": "in",
    "I": "i",
    "P": "i",
    "N": "",
    "F": "",
    "b": "",
    "d": "",
    "s": "",
    "_": "",
}
"""Kinds of values that an argument may refer to."""
