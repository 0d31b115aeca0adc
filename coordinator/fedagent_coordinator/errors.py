"""Errors of the coordinator.

Unknown names, parameters and plug-ins: `fedagent_protocol.errors.RegistryError`.
"""

import errno
import os

from fedagent_protocol.errors import FedagentError


class CoordinatorError(FedagentError):
    """Base of every error of this package."""


class RefusedError(CoordinatorError):
    """Raised when what a person asks for cannot be done so; nothing was changed."""


class PolicyError(CoordinatorError):
    """Raised when a policy, a placement or a solver cannot work, or broke a rule of the round."""


class InvalidViewError(PolicyError):
    """Raised when a column of a view or a feedback is missing or contradicts the others."""

    template = "{column} {problem}"

    column: str
    problem: str


class LedgerError(CoordinatorError):
    """Raised when money cannot be reserved, paid or given back so; nothing was written."""

    template = "{problem}"

    problem: str


class StoreError(CoordinatorError):
    """Base of errors of the database and its files."""


FOREIGN = "another process has written to the ledger"


class StoreFailedError(StoreError):
    """Raised after a disk error, or where somebody else wrote: the store must be reopened."""

    template = "storage failed ({cause}); no further payments are made"

    cause: str

    @property
    def hint(self) -> str:  # type: ignore[override]  # it depends on the cause
        """What to do before the next start."""
        if self.cause == FOREIGN:
            return "let only one process write to this data directory, then start it again"
        if os.strerror(errno.EMFILE) in self.cause:
            return "raise the limit on open files (`ulimit -n`), then start the coordinator again"
        return "free space or fix the disk, then start the coordinator again"


class StoreDamagedError(StoreError):
    """Raised when a file of a data directory cannot be used although its disk can be read."""

    template = "{path} {problem}"

    path: str
    problem: str
    hint: str = "stop the coordinator and restore the newest intact backup of its data directory"


class HistoryLostError(StoreError):
    """Raised where the books are less than was promised or not whole; it can be accepted."""

    template = "{path}: {problem}"
    hint = (
        "restore the newest intact backup of the data directory (`fedagent restore`), or accept "
        "the loss permanently with --accept-lost-history; `fedagent ledger verify` lists all "
        "problems"
    )

    path: str
    problem: str


class RunConflictError(StoreError):
    """Raised when a run is begun while another is still open."""

    template = "run {run_id:.8} of recipe {recipe_digest:.8} is still open"
    hint = "continue it with its recipe, or end it with --new-run"

    run_id: str
    recipe_digest: str


class UnknownRunError(StoreError):
    """Raised when the store has no such run."""

    template = "there is no run {run_id!r}"

    run_id: str


class UnknownRoundError(StoreError):
    """Raised when the run has no such round, or no more what it saw and decided."""

    template = "round {round} of run {run_id:.8} {problem}"

    run_id: str
    round: int
    problem: str = "does not exist"
    hint: str = ""
