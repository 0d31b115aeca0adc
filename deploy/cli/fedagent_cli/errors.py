"""Errors of the command line: one line that names the hint, one documented exit code.

`docs/exit-codes.md` lists the codes for scripts.
"""

from fedagent_protocol.errors import FedagentError

OK = 0
WARNED = 44
FAILED = 45
UNREADABLE, NO_RUN, UNBALANCED, REFUSED, DIFFERENT = 33, 40, 41, 47, 49
"""A database, a folder, a ledger; by systemd; what a replay found."""
INTERRUPTED = 130
UNREAD = 141
"""As a shell has it of a program that SIGPIPE ended."""
CODES = {
    "DataDirBusyError": 75,
    "HistoryLostError": 32,
    "UnknownRoundError": 43,
    "StoreError": UNREADABLE,
    "LedgerError": UNREADABLE,
    "DatasetError": 43,
    "FleetError": 42,
    "WorkerLostError": 46,
    "NoSupportError": 48,
}
"""Of errors that end a command as they are, by class, as a light command loads few: else 2."""


class CliError(FedagentError):
    """What ends a command with one line for the user; subclasses are those that callers tell apart.

    What is wrong comes without a full stop.
    """

    template = "{problem}"
    exit_code = 1

    def __init__(self, problem: str, hint: str = "", *, exit_code: int = 0) -> None:
        super().__init__(problem, hint)
        self.problem = problem
        self.hint = hint
        self.exit_code = exit_code or self.exit_code


def exit_code(error: FedagentError) -> int:
    """Return the code with which an error ends a command."""
    if isinstance(error, CliError):
        return error.exit_code
    return next((CODES[kind.__name__] for kind in type(error).__mro__ if kind.__name__ in CODES), 2)


class UsageError(CliError):
    """Raised when arguments or a configuration do not fit."""

    exit_code = 2


class MissingError(CliError):
    """Raised when a run, a model, a round, an optional package or a service is not there."""

    exit_code = 43


def no_run(problem: str, hint: str) -> MissingError:
    """Return that there is no run to read, or none that this user may read."""
    return MissingError(problem, hint, exit_code=NO_RUN)


class InterruptedEnd(BaseException):
    """Raised when Ctrl-C ends a command; no `Exception`, which libraries catch at an import."""
