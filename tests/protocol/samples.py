"""One example of every message, with a value in every field, made of the fields' own types."""

import re
import typing

import msgspec
from msgspec import inspect

from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction

UNIONS = {
    Direction.AGENT_TO_EDGE: m.AgentToEdge,
    Direction.EDGE_TO_AGENT: m.EdgeToAgent,
    Direction.EDGE_TO_COORDINATOR: m.EdgeToCoordinator,
    Direction.COORDINATOR_TO_EDGE: m.CoordinatorToEdge,
}
_TEXTS = ("agent-1", "0" * 32, "a" * 64, "compute")


def value_of(kind: inspect.Type) -> object:
    """Return a value of a field's type, within its limits."""
    match kind:
        case inspect.Metadata():
            return value_of(kind.type)
        case inspect.UnionType():
            return value_of(next(t for t in kind.types if not isinstance(t, inspect.NoneType)))
        case inspect.StructType():
            return sample_of(kind.cls)
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return max(kind.ge or 0, 3 if kind.le is None else min(3, kind.le))
        case inspect.FloatType():
            return 0.5
        case inspect.StrType():
            return next(text for text in _TEXTS if re.search(kind.pattern or "", text))
        case inspect.BytesType():
            return b"\xff" * (kind.min_length or 3)
        case inspect.EnumType():
            return list(kind.cls)[-1]
        case inspect.TupleType():
            return tuple(map(value_of, kind.item_types))
        case inspect.VarTupleType():
            return (value_of(kind.item_type),)
        case inspect.DictType():
            return {value_of(kind.key_type): value_of(kind.value_type)}
    raise NotImplementedError(kind)


def sample_of(struct: type[msgspec.Struct]) -> msgspec.Struct:
    """Return an example of a message, or of a part of one."""
    told = inspect.type_info(struct)
    assert isinstance(told, inspect.StructType)
    return struct(**{field.name: value_of(field.type) for field in told.fields})


FLAT: list[tuple[Direction, m.AnyMessage]] = [
    (direction, typing.cast("m.AnyMessage", sample_of(kind)))
    for direction, union in UNIONS.items()
    for kind in typing.get_args(union)
]
