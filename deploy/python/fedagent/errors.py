"""What the functions of this package raise: each is one line, with what to do about it."""

from fedagent_cli.errors import CliError, DemoError, MissingError, NoRunError, UsageError
from fedagent_protocol.errors import FedagentError

__all__ = ["CliError", "DemoError", "FedagentError", "MissingError", "NoRunError", "UsageError"]
