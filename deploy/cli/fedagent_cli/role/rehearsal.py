"""What a coordinator would make of its configuration."""

import json

from fedagent_cli.errors import RoleError
from fedagent_coordinator.config import CoordinatorConfig
from fedagent_coordinator.exits import exit_code
from fedagent_coordinator.runs import check_recipe as rehearsed
from fedagent_node.process import in_two


def check_recipe(config: dict[str, object]) -> None:
    """Check what a coordinator would make of its recipe.

    Raises:
        RoleError: It would not start; the exit code is the one it would end with.
    """
    try:
        rehearsed(CoordinatorConfig.load(json.dumps(config)))
    except Exception as error:
        code = exit_code(error)
        if code is None:
            raise
        raise RoleError(*in_two(error), exit_code=code) from error
