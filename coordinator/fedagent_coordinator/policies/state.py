"""Learnt state as declared arrays: one base keeps, grows, checks and restores it.

A class declares what it learns, each declaration being its first value: ``_plays =
ints("pool")``. The name in a saved state is the attribute's, without leading underscores. An
axis is a size or a name. All axes of one name have one size throughout a policy and its parts:
one that was named to `fix` keeps that size, any other begins with 0 rows and grows.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import PolicyError

from .base import BoolArray, Feedback, FloatArray, IndexArray, IntArray, State, T

Array = npt.NDArray[np.generic]
Start = float | FloatArray | Callable[[Any], FloatArray]
"""What new rows hold, or what returns it, given the object."""


@dataclass(frozen=True)
class _Field:
    """One declared array; a scalar is an array of one number in a saved state."""

    dtype: type[np.generic]
    axes: tuple[int | str, ...]
    start: Start = 0.0
    least: float | None = None
    nan: bool = False
    infinite: bool = False
    ascending: bool = False
    scalar: bool = False
    attribute: str = ""

    def __set_name__(self, owner: type, attribute: str) -> None:
        object.__setattr__(self, "attribute", attribute)

    def __get__(self, owner: "ArrayState | None", _class: type) -> object:
        """Give the object the first value when it is asked for."""
        if owner is None:
            return self
        value = vars(owner)[self.attribute] = self.first(owner)
        return value

    def first(self, owner: "ArrayState") -> object:
        if self.scalar:
            return self.dtype(self.start).item()
        shape = [owner.fixed.get(axis, 0) if isinstance(axis, str) else axis for axis in self.axes]
        array = np.empty(shape, self.dtype)
        if array.size:
            array[...] = self.start(owner) if callable(self.start) else self.start
        return array

    def problem(self, array: Array, sizes: dict[str, int]) -> str | None:
        """Return why a saved array is refused; `sizes` are those of the axes so far."""
        if array.dtype != self.dtype:
            return f"is {array.dtype}, not {np.dtype(self.dtype).name}"
        wanted = tuple(
            sizes.setdefault(axis, size) if isinstance(axis, str) else axis
            for axis, size in zip(self.axes, array.shape, strict=False)
        )
        if array.ndim != len(self.axes) or array.shape != wanted:
            written = [f"{sizes[a]} {a}" if a in sizes else str(a) for a in map(str, self.axes)]
            return f"has shape {array.shape}, not ({', '.join(written)})"
        values = array.astype(np.float64)
        if (np.isinf(values).any() and not self.infinite) or (
            np.isnan(values).any() and not self.nan
        ):
            return "holds a number that is not finite"
        if self.least is not None and (values < self.least).any():
            return f"holds a number below {self.least:g}"
        if self.ascending and (np.diff(values) <= 0).any():
            return "does not ascend"
        return None


def floats(
    *axes: int | str,
    start: Start = 0.0,
    least: float | None = None,
    nan: bool = False,
    infinite: bool = False,
) -> FloatArray:
    """Declare float64[axes]; finite unless `nan` or `infinite` numbers are allowed."""
    return cast("FloatArray", _Field(np.float64, axes, start, least, nan, infinite))


def ints(*axes: int | str, ascending: bool = False) -> IntArray:
    """Declare int64[axes], never negative."""
    return cast("IntArray", _Field(np.int64, axes, least=0, ascending=ascending))


def indices(*axes: int | str) -> IndexArray:
    """Declare int32[axes], never negative."""
    return cast("IndexArray", _Field(np.int32, axes, least=0))


def bools(*axes: int | str) -> BoolArray:
    """Declare bool[axes]."""
    return cast("BoolArray", _Field(np.bool_, axes))


def number(start: float = 0.0, *, least: float | None = None) -> float:
    """Declare one finite number."""
    return cast("float", _Field(np.float64, (1,), start, least, scalar=True))


def flag() -> bool:
    """Declare one truth value, false at first."""
    return cast("bool", _Field(np.bool_, (1,), scalar=True))


class ArrayState:
    """Base of everything that learns: policies, placements, controls and their parts.

    Attributes:
        parts: Attributes that are an `ArrayState`, or None; they share names and axes.
        prefixed: Prefixes and attributes of anything else with `state` and `restore`.
    """

    name: ClassVar[str] = ""
    parts: ClassVar[tuple[str, ...]] = ()
    prefixed: ClassVar[tuple[tuple[str, str], ...]] = ()
    fixed: Mapping[str, int] = {}
    _fields: ClassVar[Mapping[str, _Field]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = {name: value for name, value in vars(cls).items() if isinstance(value, _Field)}
        cls._fields = {**cls._fields, **own}

    def fix(self, **axes: int) -> None:
        """Give axes a size for good, before any array is asked for."""
        self.fixed = {**self.fixed, **axes}

    def grow(self, **axes: int) -> None:
        """Have at least so many rows in the arrays whose first axis is named."""
        for attribute, field in self._fields.items():
            size = axes.get(str(field.axes[0]))
            if size is not None and size > len(getattr(self, attribute)):
                start = field.start(self) if callable(field.start) else field.start
                setattr(self, attribute, grown(getattr(self, attribute), size, start))

    def state(self) -> dict[str, Array]:
        """Return a copy of everything learnt."""
        state: dict[str, Array] = {}
        for owner in self.owners():
            for attribute, field in owner._fields.items():
                value = getattr(owner, attribute)
                state[_key(attribute)] = np.array([value] if field.scalar else value, field.dtype)
        for prefix, attribute in self.prefixed:
            part = getattr(self, attribute).state()
            state |= {prefix + key: value for key, value in part.items()}
        return state

    def restore(self, state: State) -> None:
        """Continue from `state` exactly, or change nothing and raise `PolicyError`."""
        rest = dict(state)
        others = [(getattr(self, part), taken(rest, prefix)) for prefix, part in self.prefixed]
        self._check(rest)
        were = [(part, part.state()) for part, _ in others]
        owners = list(self.owners())
        before = [{name: getattr(owner, name) for name in owner._fields} for owner in owners]
        for owner in owners:
            for attribute, field in owner._fields.items():
                array = np.array(rest[_key(attribute)])
                setattr(owner, attribute, array[0].item() if field.scalar else array)
        try:
            self._check_rules()
            for part, its in others:
                part.restore(its)
        except PolicyError:
            for part, its in were:
                part.restore(its)
            for owner, values in zip(owners, before, strict=True):
                vars(owner).update(values)
            raise
        for owner in owners:
            owner.restored()

    def problems(self) -> Iterator[str]:
        """Yield what restored arrays contradict; each rule may rely on those before it."""
        return iter(())

    def restored(self) -> None:
        """Compute anew what follows from the arrays."""

    def _check(self, state: State) -> None:
        fields = {
            _key(name): field for owner in self.owners() for name, field in owner._fields.items()
        }
        if set(state) != set(fields):
            problem = f"holds {sorted(state)}, expected {sorted(fields)}"
            if not fields:
                problem = f"has nothing to keep, got {sorted(state)}"
            raise PolicyError(f"state of {self._called}: {problem}")
        sizes = {axis: size for owner in self.owners() for axis, size in owner.fixed.items()}
        for key, field in fields.items():
            found = field.problem(state[key], sizes)
            if found is not None:
                raise PolicyError(f"state of {self._called}: {key} {found}")

    def _check_rules(self) -> None:
        for problem in (problem for owner in self.owners() for problem in owner.problems()):
            raise PolicyError(f"state of {self._called}: {problem}")

    def owners(self) -> Iterator["ArrayState"]:
        """Yield this object and its parts that share its names."""
        yield self
        for attribute in self.parts:
            part: ArrayState | None = getattr(self, attribute)
            if part is not None:
                yield from part.owners()

    @property
    def _called(self) -> str:
        return self.name or type(self).__name__


class StatelessPolicy(ArrayState):
    """Base of policies that learn nothing."""

    needs: frozenset[str] = frozenset()

    def learn(self, feedback: Feedback) -> None:
        """Learn nothing."""


def grown(array: npt.NDArray[T], size: int, start: float | FloatArray = 0.0) -> npt.NDArray[T]:
    """Return the array, or a longer copy: at least `size` rows, new ones as `start` says."""
    if size <= len(array):
        return array
    more = np.empty((size - len(array), *array.shape[1:]), array.dtype)
    more[...] = start
    return np.concatenate((array, more))


def taken(rest: dict[str, Array], prefix: str) -> dict[str, Array]:
    """Remove what has this prefix from `rest`, and return it without."""
    names = [name for name in rest if name.startswith(prefix)]
    return {name.removeprefix(prefix): rest.pop(name) for name in names}


def _key(attribute: str) -> str:
    return attribute.lstrip("_")
