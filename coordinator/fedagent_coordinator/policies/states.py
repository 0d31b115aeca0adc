"""Whether the arrays of a saved state fit each other and the policy they are given to.

`base.checked_state` looks at names and dtypes; this at shapes and values, so that no
state is taken that fails later, in the middle of a run.
"""

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt

from fedagent_coordinator.errors import StateError

Shape = tuple[int | str, ...]
"""Sizes of the axes; equal letters must be equal sizes."""


def check_arrays(
    name: str,
    arrays: Mapping[str, npt.NDArray[np.generic]],
    shapes: Mapping[str, Shape],
    *,
    unknown: Collection[str] = (),
    at_least_0: Collection[str] = (),
) -> None:
    """Refuse arrays of other shapes, with numbers that are not finite, or negative counters.

    Args:
        name: The policy, for the error.
        arrays: What `base.checked_state` has passed, or more.
        shapes: Of each array to look at.
        unknown: Float arrays that may hold NaN.
        at_least_0: Float arrays that count something; integers always do.

    Raises:
        StateError: See above.
    """
    sizes: dict[str, int] = {}
    for key, shape in shapes.items():
        array = arrays[key]
        real = array.shape
        wanted = [
            sizes.setdefault(size, at) if isinstance(size, str) else size
            for size, at in zip(shape, real, strict=False)
        ]
        if len(real) != len(shape) or list(real) != wanted:
            raise StateError(name, f"{key} has shape {real}, not {_written(shape, sizes)}")
        if np.issubdtype(array.dtype, np.floating):
            bad = np.isinf(array) if key in unknown else ~np.isfinite(array)
            if bad.any():
                raise StateError(name, f"{key} holds a number that is not finite")
        if key in at_least_0 or np.issubdtype(array.dtype, np.integer):
            require(
                name, bool((array.astype(np.float64) >= 0).all()), f"{key} holds a negative counter"
            )


def require(name: str, holds: bool, problem: str) -> None:
    """Refuse a state that breaks a rule.

    Raises:
        StateError: It does.
    """
    if not holds:
        raise StateError(name, problem)


def ascending(clients: npt.NDArray[np.generic]) -> bool:
    """Return whether integers increase strictly."""
    return bool((np.diff(clients.astype(np.int64)) > 0).all())


def _written(shape: Shape, sizes: Mapping[str, int]) -> tuple[int | str, ...]:
    return tuple(sizes.get(size, size) if isinstance(size, str) else size for size in shape)
