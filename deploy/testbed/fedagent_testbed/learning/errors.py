"""Errors of the testbed's training.

::

    LearningError
    ├── SettingError      a setting is out of range, or asks for more than there is
    └── ShapeError        an array that was handed in has another shape or dtype
"""


class LearningError(Exception):
    """Base of every error of this package."""


class SettingError(LearningError):
    """Raised when a setting cannot be met; `hint` says what can."""

    def __init__(self, setting: str, problem: str, hint: str) -> None:
        super().__init__(setting, problem, hint)
        self.setting = setting
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.setting}: {self.problem}; {self.hint}"


class ShapeError(LearningError):
    """Raised when an argument is no array of the shape and dtype it must have."""

    def __init__(self, name: str, expected: str, got: str) -> None:
        super().__init__(name, expected, got)
        self.name = name
        self.expected = expected
        self.got = got

    def __str__(self) -> str:
        return f"{self.name}: expected {self.expected}, got {self.got}"
