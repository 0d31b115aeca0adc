"""Errors of the command line: one line that names the hint, one documented exit code.

`docs/exit-codes.md` lists the codes for scripts; `RoleError` has the role's own.
"""

from typing import ClassVar

OK = 0
WARNED = 44
FAILED = 45
INTERRUPTED = 130
UNREAD = 141
"""As a shell has it of a program that SIGPIPE ended."""


class CliError(Exception):
    """Base of everything that ends a command with one line for the user.

    Attributes:
        problem: What is wrong, without a full stop.
        hint: What to do about it.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class UsageError(CliError):
    """Raised when arguments or a configuration do not fit."""

    exit_code = 2


class RoleError(CliError):
    """Raised when a role would not start: the exit code is the one that it would end with."""

    def __init__(self, problem: str, hint: str = "", *, exit_code: int) -> None:
        super().__init__(problem, hint)
        self.exit_code = exit_code  # type: ignore[misc]  # one class stands for every role's


class UnreadableError(CliError):
    """Raised when the database to read is damaged, or of another version."""

    exit_code = 33


class NoRunError(CliError):
    """Raised when there is no run to read."""

    exit_code = 40


class UnbalancedError(CliError):
    """Raised when the ledger does not add up."""

    exit_code = 41


class DemoError(CliError):
    """Raised when the demo could not do what it was asked to."""

    exit_code = 42


class MissingError(CliError):
    """Raised when an optional package, a model, a round or a service is not there."""

    exit_code = 43


class KilledError(CliError):
    """Raised when a process that worked for the command was killed."""

    exit_code = 46


class ServiceError(CliError):
    """Raised when systemd refuses a service."""

    exit_code = 47


class UnsupportedError(CliError):
    """Raised when a recorded run cannot say what another policy would have earned."""

    exit_code = 48


class DifferentError(CliError):
    """Raised when a run's decisions are not what they are said to be."""

    exit_code = 49


class UnreadEnd(BaseException):
    """Raised when nobody reads the output of a command any more, as in `| head`."""


class InterruptedEnd(BaseException):
    """Raised when Ctrl-C ends a command; no `Exception`, which libraries catch at an import."""

    problem = "interrupted"
    hint = ""
    exit_code = INTERRUPTED
