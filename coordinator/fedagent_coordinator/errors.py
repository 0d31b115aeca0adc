"""Errors of the coordinator.

::

    CoordinatorError
    ├── ExportError                 there is no ONNX form of this model
    ├── RefusedOptionError          an option of the start does not fit the run
    ├── PolicyError
    │   ├── UnknownNameError        no policy, solver or placement of that name
    │   ├── ParameterError          a parameter is unknown, of a wrong type or out of range
    │   ├── PluginError             a user's own policy, solver or placement is broken
    │   ├── InvalidViewError        a round's columns contradict each other
    │   ├── MissingFeatureError     a policy needs a feature the view has not
    │   ├── NonFiniteFeatureError   a needed feature is NaN or infinite
    │   ├── InvalidSelectionError   a selection breaks a constraint
    │   └── StateError              a saved state does not fit the policy
    ├── LedgerError
    │   ├── BudgetExceededError     a round wants more than is free
    │   ├── DuplicateRoundError     the round is reserved already
    │   ├── InvalidAmountError      an amount is no whole number in range
    │   ├── RefusedEntryError       the database's own constraints say no
    │   └── OutcomeMismatchError    outcomes and reservations differ
    └── StoreError
        ├── StoreBusyError          another coordinator holds the data directory
        ├── StoreFailedError        the disk failed; nothing may be trusted until reopened
        ├── SchemaVersionError      the database is of a newer release
        ├── StoreDamagedError       the database's pages are not what was written
        ├── HistoryLostError        the database is older than what was promised
        ├── ModelLostError          the global model is not on disk as it was written
        ├── RunConflictError        another run is still open
        ├── RunEndedError           the run is over
        ├── UnknownRunError         no such run
        ├── UnknownRoundError       no such round
        └── RecordError             stored bytes are not the record they should be
"""

from collections.abc import Collection


class CoordinatorError(Exception):
    """Base of every error of this package."""


class ExportError(CoordinatorError):
    """Raised when a model cannot be written as an ONNX file."""

    def __init__(self, kind: str, reason: str, hint: str) -> None:
        super().__init__(kind, reason, hint)
        self.kind = kind
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"a {self.kind} model {self.reason}; {self.hint}"


class RefusedOptionError(CoordinatorError):
    """Raised when an option of the start does not fit the run, or names no model for it."""

    def __init__(self, option: str, problem: str, hint: str) -> None:
        super().__init__(option, problem, hint)
        self.option = option
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.option}: {self.problem}; {self.hint}"


class PolicyError(CoordinatorError):
    """Base of errors of policies, placements and solvers."""


class UnknownNameError(PolicyError):
    """Raised when nothing of this kind has the name."""

    def __init__(self, kind: str, name: str, known: Collection[str]) -> None:
        super().__init__(kind, name, known)
        self.kind = kind
        self.name = name
        self.known = tuple(sorted(known))

    def __str__(self) -> str:
        return f"no {self.kind} is named {self.name!r}; there are: {', '.join(self.known)}"


class ParameterError(PolicyError):
    """Raised when a parameter is unknown or has a value out of its range."""

    def __init__(self, name: str, parameter: str, problem: str) -> None:
        super().__init__(name, parameter, problem)
        self.name = name
        self.parameter = parameter
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.name}: parameter {self.parameter!r} {self.problem}"


class PluginError(PolicyError):
    """Raised when a user's own policy, solver or placement is broken.

    Attributes:
        kind: What it should be.
        name: Its name.
        source: ``module:attribute`` of its entry point.
        problem: What is wrong with it.
    """

    def __init__(self, kind: str, name: str, source: str, problem: str) -> None:
        super().__init__(kind, name, source, problem)
        self.kind = kind
        self.name = name
        self.source = source
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self.kind} {self.name!r} ({self.source}) {self.problem}; "
            "fix its package or uninstall it"
        )


class InvalidViewError(PolicyError):
    """Raised when the columns of a view or a feedback contradict each other."""

    def __init__(self, column: str, problem: str) -> None:
        super().__init__(column, problem)
        self.column = column
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.column} {self.problem}"


class MissingFeatureError(PolicyError):
    """Raised when a policy asks for a feature that the view does not have."""

    def __init__(self, feature: str, known: Collection[str]) -> None:
        super().__init__(feature, known)
        self.feature = feature
        self.known = tuple(known)

    def __str__(self) -> str:
        return f"feature {self.feature!r} is missing; there are: {', '.join(self.known) or 'none'}"


class NonFiniteFeatureError(PolicyError):
    """Raised when a feature that a policy reads is NaN or infinite."""

    def __init__(self, feature: str, pair: int, count: int) -> None:
        super().__init__(feature, pair, count)
        self.feature = feature
        self.pair = pair
        self.count = count

    def __str__(self) -> str:
        return f"feature {self.feature!r} is not finite in {self.count} pairs, first in {self.pair}"


class InvalidSelectionError(PolicyError):
    """Raised when a selection breaks `constraint`; `index` is the pair or edge at fault."""

    def __init__(self, constraint: str, index: int, problem: str) -> None:
        super().__init__(constraint, index, problem)
        self.constraint = constraint
        self.index = index
        self.problem = problem

    def __str__(self) -> str:
        return f"selection breaks {self.constraint} at {self.index}: {self.problem}"


class StateError(PolicyError):
    """Raised when a saved state does not fit the policy it is given to."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(name, problem)
        self.name = name
        self.problem = problem

    def __str__(self) -> str:
        return f"state of {self.name}: {self.problem}"


class LedgerError(CoordinatorError):
    """Base of errors about money."""


class BudgetExceededError(LedgerError):
    """Raised when a round wants more than is free; nothing was written.

    Attributes:
        scope: ``edge`` (the edge's budget of this round) or ``total`` (the run's).
        edge: The edge's index, or None.
        wanted_micro: What the round asked for, in micro-credits.
        free_micro: What there is.
    """

    def __init__(self, *, scope: str, edge: int | None, wanted_micro: int, free_micro: int) -> None:
        super().__init__(scope, edge, wanted_micro, free_micro)
        self.scope = scope
        self.edge = edge
        self.wanted_micro = wanted_micro
        self.free_micro = free_micro

    def __str__(self) -> str:
        where = f"edge {self.edge}" if self.scope == "edge" else "the run"
        return f"{where} has {self.free_micro} micro-credits, the round wants {self.wanted_micro}"


class DuplicateRoundError(LedgerError):
    """Raised when a round is reserved again, or after a later one; nothing was written."""

    def __init__(self, run_id: str, round_: int) -> None:
        super().__init__(run_id, round_)
        self.run_id = run_id
        self.round = round_

    def __str__(self) -> str:
        return f"round {self.round} of run {self.run_id[:8]} does not come after the last one"


class RefusedEntryError(LedgerError):
    """Raised when the database's own constraints refuse a write; nothing was written."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint

    def __str__(self) -> str:
        return f"the ledger refuses this: {self.constraint}"


class InvalidAmountError(LedgerError):
    """Raised when an amount is not an integer from 0 to `policies.base.MAX_MICRO`."""

    def __init__(self, what: str, amount: object) -> None:
        super().__init__(what, amount)
        self.what = what
        self.amount = amount

    def __str__(self) -> str:
        return f"{self.what} is {self.amount!r}, not a whole number of micro-credits in range"


class OutcomeMismatchError(LedgerError):
    """Raised when the outcomes of a round are not those of its reservations."""

    def __init__(self, round_: int, missing: Collection[int], unknown: Collection[int]) -> None:
        super().__init__(round_, missing, unknown)
        self.round = round_
        self.missing = tuple(missing)
        self.unknown = tuple(unknown)

    def __str__(self) -> str:
        return (
            f"round {self.round}: no outcome for clients {self.missing[:10]}, "
            f"outcomes without a reservation for {self.unknown[:10]}"
        )


class StoreError(CoordinatorError):
    """Base of errors of the database and its files."""


class StoreBusyError(StoreError):
    """Raised when another process holds the data directory."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"another coordinator works in {self.path}; stop it or use another data directory"


class StoreFailedError(StoreError):
    """Raised after a disk error: what was written is unknown until the store is reopened."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause

    def __str__(self) -> str:
        return (
            f"storage failed ({self.cause}), no more money moves; make room or fix the disk, then "
            "start the coordinator again"
        )


class SchemaVersionError(StoreError):
    """Raised when a newer release has written the database."""

    def __init__(self, path: str, migrations: Collection[str]) -> None:
        super().__init__(path, migrations)
        self.path = path
        self.migrations = tuple(migrations)

    def __str__(self) -> str:
        names = ", ".join(self.migrations)
        return f"{self.path} was written by a newer fedagent ({names}); install that release"


class StoreDamagedError(StoreError):
    """Raised when the database cannot be read although its disk can."""

    hint = "stop the coordinator and restore the newest whole copy of its data directory"

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path} is damaged ({self.problem}); {self.hint}"


class HistoryLostError(StoreError):
    """Raised at start when the database holds less than was promised, or something else."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"{self.path}: {self.problem}. Committed history is lost or changed (an old copy, a "
            "deleted or damaged -wal file); restore the newest copy of the data directory, or "
            "accept the loss for good with --accept-lost-history"
        )


class ModelLostError(StoreError):
    """Raised when the global model of a run is not on disk, or not as it was written."""

    def __init__(self, run_id: str, digest: str, problem: str) -> None:
        super().__init__(run_id, digest, problem)
        self.run_id = run_id
        self.digest = digest
        self.problem = problem

    def __str__(self) -> str:
        return (
            f"the global model of run {self.run_id[:8]}, models/{self.digest}, is {self.problem}; "
            "restore that file from a copy of the data directory, or begin again with --new-run"
        )


class RunConflictError(StoreError):
    """Raised when a run is begun while another is still open."""

    def __init__(self, run_id: str, recipe_digest: str) -> None:
        super().__init__(run_id, recipe_digest)
        self.run_id = run_id
        self.recipe_digest = recipe_digest

    def __str__(self) -> str:
        return (
            f"run {self.run_id[:8]} of recipe {self.recipe_digest[:8]} is still open; "
            "resume it with its recipe, or end it with --new-run"
        )


class UnknownRunError(StoreError):
    """Raised when the store has no such run."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"there is no run {self.run_id!r}"


class RunEndedError(StoreError):
    """Raised when a round is reserved in a run that has ended."""

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.run_id = run_id

    def __str__(self) -> str:
        return f"run {self.run_id[:8]} has ended; begin another with --new-run"


class UnknownRoundError(StoreError):
    """Raised when the run has no such round."""

    def __init__(self, run_id: str, round_: int) -> None:
        super().__init__(run_id, round_)
        self.run_id = run_id
        self.round = round_

    def __str__(self) -> str:
        return f"run {self.run_id[:8]} has no round {self.round}"


class RecordError(StoreError):
    """Raised when stored bytes are not the record they should be."""

    def __init__(self, record: str, problem: str) -> None:
        super().__init__(record, problem)
        self.record = record
        self.problem = problem

    def __str__(self) -> str:
        return f"stored {self.record}: {self.problem}"
