"""What an exported model says of itself, so that nobody needs the recipe to use it.

The same two texts in the metadata of safetensors and of ONNX: `model`, the recipe's section,
and `data`. Weights take scaled samples; an ONNX graph scales them itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.recipe.spec import DataSpec, ModelSpec, TaskSpec
from fedagent_task.recipe.task_checks import check_task
from fedagent_task.recipe.text import short_form

PREFIX = "fedagent."


@dataclass(frozen=True, slots=True)
class Described:
    """What a model file takes and gives."""

    model: ModelSpec
    data: DataSpec


def described(model: ModelSpec, data: DataSpec, **more: str) -> dict[str, str]:
    """Return the metadata of a model; `more` says where it came from."""
    texts = {
        "model": msgspec.json.encode(short_form(model)).decode(),
        "data": msgspec.json.encode(short_form(data)).decode(),
        **more,
    }
    return {PREFIX + name: text for name, text in texts.items()}


def read_description(metadata: Mapping[str, str]) -> Described:
    """Return what metadata says of a model; `TaskFormatError` if nothing, or what cannot be."""
    model, data = (metadata.get(PREFIX + name) for name in ("model", "data"))
    if model is None or data is None:
        raise TaskFormatError("model", "the file says not what it takes: export it again")
    try:
        task = TaskSpec(
            model=msgspec.json.decode(model, type=ModelSpec),
            data=msgspec.json.decode(data, type=DataSpec),
        )
        check_task(task)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TaskFormatError("metadata", "is none of this version") from error
    except RecipeError as error:
        raise TaskFormatError(error.key, error.reason) from error
    return Described(task.model, task.data)
