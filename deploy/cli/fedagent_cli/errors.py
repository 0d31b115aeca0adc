"""Errors of the command line: one line that names the hint, one documented exit code.

`docs/exit-codes.md` lists the codes for scripts.
"""

OK = 0
WARNED = 44
FAILED = 45
UNREADABLE, UNBALANCED, KILLED, REFUSED, UNSUPPORTED, DIFFERENT = 33, 41, 46, 47, 48, 49
"""A database, a ledger; a process that worked for a command; by systemd; what a replay found."""
INTERRUPTED = 130
UNREAD = 141
"""As a shell has it of a program that SIGPIPE ended."""


class CliError(Exception):
    """What ends a command with one line for the user; subclasses are those that callers tell apart.

    Attributes:
        problem: What is wrong, without a full stop.
        hint: What to do about it.
    """

    exit_code = 1

    def __init__(self, problem: str, hint: str = "", *, exit_code: int = 0) -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint
        self.exit_code = exit_code or self.exit_code

    def __str__(self) -> str:
        return f"{self.problem}; {self.hint}" if self.hint else self.problem


class UsageError(CliError):
    """Raised when arguments or a configuration do not fit."""

    exit_code = 2


class NoRunError(CliError):
    """Raised when there is no run to read."""

    exit_code = 40


class DemoError(CliError):
    """Raised when the demo, or a run on this machine, could not do what it was asked to."""

    exit_code = 42


class MissingError(CliError):
    """Raised when an optional package, a model, a round or a service is not there."""

    exit_code = 43


class UnreadEnd(BaseException):
    """Raised when nobody reads the output of a command any more, as in `| head`."""


class InterruptedEnd(BaseException):
    """Raised when Ctrl-C ends a command; no `Exception`, which libraries catch at an import."""

    problem = "interrupted"
    hint = ""
    exit_code = INTERRUPTED
