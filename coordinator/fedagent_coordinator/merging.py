"""The global model: the weighted mean of edge models (ALGORITHMS section 1)."""

import mmap
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_node.blobs import BlobStore
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import (
    Buffer,
    Manifest,
    decode_tensors,
    digest_of,
    encode_tensors,
)
from fedagent_task.mean import RunningMean

from .core.effects import Merged

Tensors = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True, slots=True)
class EdgeModel:
    """One edge model: its safetensors bytes and how much it counts."""

    digest: str
    data: Buffer
    weight: float


@dataclass(frozen=True, slots=True)
class MeanModel:
    """What a merge made: no digest when no model was usable, no data when it is one of them."""

    digest: str
    data: bytes
    refused: dict[str, str]


def merge_models(models: Sequence[EdgeModel], manifest: Manifest) -> MeanModel:
    """Return the mean of the models, summed in float64 one tensor at a time.

    A model that does not fit the manifest, or is not finite, is left out with a
    reason, so that one edge cannot spoil the global model. The mean of one model
    is that model.
    """
    refused: dict[str, str] = {}
    usable: list[tuple[EdgeModel, Tensors]] = []
    for model in models:
        try:
            tensors = decode_tensors(model.data, manifest)
        except ProtocolError as error:
            refused[model.digest] = f"{error.reason}: {error}"
            continue
        if not all(np.isfinite(tensor).all() for tensor in tensors.values()):
            refused[model.digest] = "non_finite"
        else:
            usable.append((model, tensors))
    if len(usable) <= 1:
        return MeanModel(usable[0][0].digest if usable else "", b"", refused)
    mean = {spec.name: _mean(spec.name, usable) for spec in manifest.specs}
    data = encode_tensors(mean)
    return MeanModel(digest_of(data), data, refused)


def merge_files(
    blobs: BlobStore, manifest: Manifest, round_: int, parts: Sequence[tuple[str, float]]
) -> Merged:
    """Average edge models by digest and weight into a durable global one.

    The models are mapped, not read, so that memory stays at one tensor.
    """
    with ExitStack() as stack:
        models: list[EdgeModel] = []
        missing: dict[str, str] = {}
        for digest, weight in parts:
            try:
                file = stack.enter_context(blobs.path(digest).open("rb"))
            except FileNotFoundError:
                missing[digest] = "missing"
                continue
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            models.append(EdgeModel(digest, data, weight))
        mean = merge_models(models, manifest)
        if mean.data:
            blobs.put(mean.data)
        return Merged(round_, mean.digest, {**missing, **mean.refused})


def _mean(name: str, models: Sequence[tuple[EdgeModel, Tensors]]) -> npt.NDArray[np.generic]:
    mean = RunningMean()
    for model, tensors in models:
        mean.add({name: tensors[name]}, model.weight)
    return mean.apply({name: np.zeros_like(models[0][1][name])})[name]
