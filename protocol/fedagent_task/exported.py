"""What an exported model says of itself, so that nobody needs the recipe to use it.

The same two texts in the metadata of safetensors and of ONNX: `model`, the recipe's section,
and `data`. Weights take scaled samples; an ONNX graph scales them itself.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import msgspec

from .errors import RecipeError, TaskFormatError
from .features import Raw, scaled
from .models import Doubles, Model, Weights, create
from .recipe import short_form
from .recipe_checks import check_task
from .samples import Csr
from .spec import DataSpec, ModelSpec, TaskSpec
from .travelling import model_tensors

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


class Predictor(Protocol):
    """A model file, ready for samples as the sensors say them."""

    @property
    def described(self) -> Described:
        """What it takes and gives."""

    def forward(self, x: Raw | Csr) -> Doubles:
        """Return what `Model.forward` gives, for raw samples [n, features]."""


@dataclass(frozen=True, slots=True)
class TensorsFile:
    """Weights of a safetensors file."""

    described: Described
    model: Model
    weights: Weights

    def forward(self, x: Raw | Csr) -> Doubles:
        """Return what the model says of raw samples."""
        taken = scaled(x, self.described.data)
        return self.model.forward(self.weights, taken)


def open_model(data: bytes) -> Predictor:
    """Return the model in a safetensors or ONNX file that `fedagent models export` wrote.

    Raises:
        TaskFormatError: It is none, or says not what it takes.
        ProtocolError: Its tensors are not those that it says.
        ModuleNotFoundError: onnxruntime is not installed.
    """
    if data[8:9] != b"{":
        from .onnx_session import OnnxFile  # noqa: PLC0415 - an optional package

        return OnnxFile(data)
    length = int.from_bytes(data[:8], "little")
    try:
        header = msgspec.json.decode(data[8 : 8 + length], type=_Header)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TaskFormatError("model", "the bytes are no model") from error
    told = read_description(header.metadata)
    model = create(told.model)
    tensors = model_tensors(data, model.manifest())
    return TensorsFile(told, model, {n: t.astype("float32") for n, t in tensors.items()})


class _Header(msgspec.Struct):
    metadata: dict[str, str] = msgspec.field(name="__metadata__", default_factory=dict)
