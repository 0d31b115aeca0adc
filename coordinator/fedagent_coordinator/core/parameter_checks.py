"""Parameters of controls: whole numbers and numbers in a range, or a refusal."""

from fedagent_coordinator.errors import ParameterError

MAX_ITERATIONS = 1_000_000
"""Largest number of iterations of one arrival step."""


def whole(name: str, parameter: str, value: int, least: int) -> int:
    """Return a whole number from `least` to `MAX_ITERATIONS`.

    Raises:
        ParameterError: It is anything else.
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not least <= value <= MAX_ITERATIONS
    ):
        problem = f"is {value!r}: must be a whole number from {least} to {MAX_ITERATIONS}"
        raise ParameterError(name, parameter, problem)
    return value


def number(
    name: str, parameter: str, value: float, *, least: float | None = None, most: float = 1e9
) -> float:
    """Return a finite number above 0, or from `least` if that is given, up to `most`.

    Raises:
        ParameterError: It is anything else.
    """
    good = isinstance(value, int | float) and not isinstance(value, bool) and value <= most
    if not good or not (value > 0 if least is None else value >= least):
        lower = "above 0" if least is None else f"from {least:g}"
        raise ParameterError(name, parameter, f"is {value!r}: must be {lower} up to {most:g}")
    return float(value)
