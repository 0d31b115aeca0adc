"""Errors of the coordinator.

Unknown names, parameters and plug-ins: `fedagent_protocol.errors.RegistryError`.
"""

import errno
import os
from collections.abc import Collection

from fedagent_protocol.errors import FedagentError


class CoordinatorError(FedagentError):
    """Base of every error of this package."""


class ExportError(CoordinatorError):
    """Raised when a model cannot be written as an ONNX file."""

    template = "a {kind} model {reason}"

    kind: str
    reason: str
    hint: str


class RefusedOptionError(CoordinatorError):
    """Raised when an option of the start does not fit the run, or names no model for it."""

    template = "{option}: {problem}"

    option: str
    problem: str
    hint: str


class EnrolmentError(CoordinatorError):
    """Raised when a device cannot be invited, accepted or revoked."""

    template = "{problem}"

    problem: str
    hint: str


class PolicyError(CoordinatorError):
    """Base of errors of policies, placements and solvers."""


class InvalidViewError(PolicyError):
    """Raised when the columns of a view or a feedback contradict each other."""

    template = "{column} {problem}"

    column: str
    problem: str


class MissingFeatureError(PolicyError):
    """Raised when a policy asks for a feature that the view does not have."""

    template = "feature {feature!r} is missing; there are: {known}"

    feature: str
    known: Collection[str]


class InvalidSelectionError(PolicyError):
    """Raised when a selection breaks `constraint`; `index` is the pair or edge at fault."""

    template = "selection breaks {constraint} at {index}: {problem}"

    constraint: str
    index: int
    problem: str


class MissingPackageError(PolicyError):
    """Raised when an optional package is needed that is not installed."""

    template = "{name} needs {package}"

    name: str
    package: str
    hint: str


class StateError(PolicyError):
    """Raised when a saved state does not fit the policy it is given to."""

    template = "state of {name}: {problem}"

    name: str
    problem: str


class LedgerError(CoordinatorError):
    """Raised when money cannot be reserved, paid or given back so; nothing was written."""

    template = "{problem}"

    problem: str


class StoreError(CoordinatorError):
    """Base of errors of the database and its files."""


class StoreFailedError(StoreError):
    """Raised after a disk error: what was written is unknown until the store is reopened."""

    template = "storage failed ({cause}); no further payments are made"

    cause: str

    @property
    def hint(self) -> str:  # type: ignore[override]  # it depends on the cause
        """What to mend before the next start."""
        if os.strerror(errno.EMFILE) in self.cause:
            return "raise the limit on open files (`ulimit -n`), then start the coordinator again"
        return "free space or fix the disk, then start the coordinator again"


class BackupError(StoreError):
    """Raised when a copy of a data directory cannot be made, or be laid down."""

    template = "{path} {problem}"

    path: str
    problem: str
    hint: str


class OvertakenError(StoreError):
    """Raised when another process has written the books; nothing was written."""

    template = "{path}: another coordinator has written to it since this one started"
    hint = (
        "only one coordinator may use a data directory; stop the other one and start this one again"
    )

    path: str


class LedgerBrokenError(StoreError):
    """Raised at start when the books are not whole; `problem` is the first of several."""

    template = "{path}: the ledger has {count} problems, the first: {problem}"
    hint = (
        "restore the newest intact backup of the data directory (fedagent restore), or accept "
        "the damage permanently with --accept-lost-history; list all problems: fedagent ledger "
        "verify"
    )

    path: str
    count: int
    problem: str


class SchemaVersionError(StoreError):
    """Raised when another version of fedagent has written the database."""

    template = "{path} was written by another fedagent (schema {found}; this one has {wanted})"
    hint = "continue with that version, or start fresh in another --data-dir"

    path: str
    found: int
    wanted: int


class StoreDamagedError(StoreError):
    """Raised when the database cannot be read although its disk can."""

    template = "{path} is damaged ({problem})"
    hint = "stop the coordinator and restore the newest intact backup of its data directory"

    path: str
    problem: str


class HistoryLostError(StoreError):
    """Raised at start when the database holds less than was promised, or something else."""

    template = (
        "{path}: {problem}. Committed history was lost or changed (for example an old copy, or "
        "a deleted or damaged -wal file)"
    )
    hint = (
        "restore the newest backup of the data directory, or accept the loss permanently with "
        "--accept-lost-history"
    )

    path: str
    problem: str


class UnreadableDatabaseError(HistoryLostError):
    """Raised when the database cannot even be opened: there is no loss to accept."""

    template = "{path}: {problem}"
    hint = "restore the newest backup of the data directory, or start fresh in another --data-dir"


class ModelLostError(StoreError):
    """Raised when the global model of a run is not on disk, or not as it was written."""

    template = "the global model of run {run_id:.8}, models/{digest}, is {problem}"
    hint = (
        "restore that file from a backup of the data directory, or start a new run with --new-run"
    )

    run_id: str
    digest: str
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
    """Raised when the run has no such round."""

    template = "run {run_id:.8} has no round {round}"

    run_id: str
    round: int


class PrunedRoundError(StoreError):
    """Raised when somebody asks what a pruned round saw or decided."""

    template = "round {round} of run {run_id:.8} was pruned, with all before round {first}"
    hint = "ask about a later round, or read an older `fedagent backup`"

    run_id: str
    round: int
    first: int


class ArchiveError(StoreError):
    """Raised when the orders of closed rounds are not there, or not as they were written."""

    template = "archive.db: the orders of rounds {first} to {last} {problem}"
    hint = "restore archive.db from a copy of the data directory"

    first: int
    last: int
    problem: str


class RecordError(StoreError):
    """Raised when stored bytes are not the record they should be."""

    template = "stored {record}: {problem}"

    record: str
    problem: str
