"""Federated learning on real edge hardware, from Python: see `docs/python.md`.

A name is imported when it is asked for: ``import fedagent`` costs nothing, and a device that
has neither torch nor a coordinator may have this package.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedagent_agent.learners.user import trainer
    from fedagent_cli.errors import CliError, MissingError, UsageError
    from fedagent_protocol.errors import FedagentError
    from fedagent_testbed.local_fleet import FleetError

    from . import testbed
    from .deal import load_data
    from .local import Run, run_local
    from .model import Model, load_model
    from .run_data import RunData, read
    from .task import Task

    __version__: str

_AT = {
    "CliError": "fedagent_cli.errors",
    "FedagentError": "fedagent_protocol.errors",
    "FleetError": "fedagent_testbed.local_fleet",
    "MissingError": "fedagent_cli.errors",
    "Model": ".model",
    "Run": ".local",
    "RunData": ".run_data",
    "Task": ".task",
    "UsageError": "fedagent_cli.errors",
    "load_data": ".deal",
    "load_model": ".model",
    "read": ".run_data",
    "run_local": ".local",
    "trainer": "fedagent_agent.learners.user",
}
__all__ = [
    "CliError",
    "FedagentError",
    "FleetError",
    "MissingError",
    "Model",
    "Run",
    "RunData",
    "Task",
    "UsageError",
    "__version__",
    "load_data",
    "load_model",
    "read",
    "run_local",
    "testbed",
    "trainer",
]


def __getattr__(name: str) -> object:
    found: object
    if name in _AT:
        found = getattr(import_module(_AT[name], __name__), name)
    elif name == "testbed":
        found = import_module(".testbed", __name__)
    elif name == "__version__":
        found = import_module("fedagent_protocol").VERSION
    else:
        raise AttributeError(f"module 'fedagent' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
