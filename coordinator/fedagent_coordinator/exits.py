"""How a coordinator ends: one exit code for each cause."""

from fedagent_node.errors import (
    DataDirBusyError,
    JoinError,
    LinkError,
)
from fedagent_node.settings import SettingError
from fedagent_protocol.errors import RegistryError
from fedagent_task.errors import DatasetError, RecipeError, TaskError, TaskFileError

from .errors import (
    CoordinatorError,
    HistoryLostError,
    LedgerError,
    PolicyError,
    RefusedError,
    RunConflictError,
    StoreDamagedError,
    StoreError,
)

EXIT_CODES: tuple[tuple[type[Exception], int], ...] = (
    (SettingError, 2),
    (RecipeError, 2),
    (TaskFileError, 2),
    (RefusedError, 2),
    (JoinError, 2),
    (DataDirBusyError, 75),
    (RunConflictError, 31),
    (HistoryLostError, 32),
    (StoreDamagedError, 32),
    (StoreError, 33),
    (LedgerError, 33),
    (PolicyError, 34),
    (RegistryError, 34),
    (LinkError, 35),
    (DatasetError, 36),
    (TaskError, 36),
    (CoordinatorError, 30),
    (OSError, 35),
)
"""Exit code of each error; the first class that fits decides (docs/exit-codes.md)."""


def exit_code(error: Exception) -> int | None:
    """Return the exit code of an error, None for one that nobody foresaw."""
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), None)
