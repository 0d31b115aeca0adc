"""The files of a training: the model that comes in, the update that goes out."""

import math
import os
from pathlib import Path

import numpy as np

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import Manifest, decode_tensors

from .learners import Tensors


class FailedTrainingError(Exception):
    """A training that gives no update; becomes `Failed`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def read_model(path: Path, manifest: Manifest) -> Tensors:
    """Return the finite float32 tensors of a base model's file."""
    try:
        tensors = decode_tensors(path.read_bytes(), manifest)
    except OSError as error:
        raise FailedTrainingError("model", error.strerror or "cannot be read") from error
    except ProtocolError as error:
        raise FailedTrainingError("model", str(error)[:1000]) from error
    model = {name: tensor.astype(np.float32, copy=False) for name, tensor in tensors.items()}
    if not all(np.isfinite(tensor).all() for tensor in model.values()):
        raise FailedTrainingError("model", "the base model is not finite")
    return model


def checked_norm(update: Tensors, limit: float) -> float:
    """Return the L2 norm; what the edge would reject is not sent."""
    square = sum(float(np.vdot(tensor, tensor)) for tensor in update.values())
    norm = math.sqrt(square) if square >= 0 else math.nan
    if not math.isfinite(norm):
        raise FailedTrainingError("diverged", "the update is not finite; lower learner.rate")
    if 0 < limit < norm:
        raise FailedTrainingError(
            "norm", f"norm {norm:.4g} is over limits.norm = {limit:g}; lower learner.rate"
        )
    return norm


def write_update(path: Path, body: bytes) -> None:
    """Write the whole file durably, or none."""
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            file.write(body)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise FailedTrainingError("disk", error.strerror or "cannot be written") from error
