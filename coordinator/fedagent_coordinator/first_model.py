"""The model that a run is told to begin from: a safetensors file, or one that is kept here."""

import re
from pathlib import Path

import numpy as np

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors

from .errors import RefusedOptionError

_DIGEST = re.compile(r"[0-9a-f]{8,64}")
_EXPORT = "take a file that `fedagent models export --out NAME.safetensors` wrote"


def read_first_model(named: str, folder: Path, manifest: Manifest) -> bytes:
    """Return a model as a run keeps it; what is beside its tensors is left out.

    Args:
        named: A file, or a digest (8 hex digits of it at least) of a model in `folder`.
        folder: The models of the data directory.
        manifest: What tensors the recipe's model has.

    Raises:
        RefusedOptionError: There is none, or it is no model of this recipe.
    """
    option = f"--init {named}"
    path = _path(option, named, folder)
    try:
        size = path.stat().st_size
        if size > manifest.max_file_bytes:
            most = manifest.max_file_bytes
            problem = f"is {size} bytes, a model of this recipe at most {most}"
            raise RefusedOptionError(option, problem, _EXPORT)
        data = path.read_bytes()
    except OSError as error:
        raise RefusedOptionError(option, f"cannot be read ({error.strerror})", _EXPORT) from error
    try:
        tensors = decode_tensors(data, manifest)
    except ProtocolError as error:
        raise RefusedOptionError(option, f"is no model of this recipe: {error}", _EXPORT) from error
    for name, tensor in tensors.items():
        if not np.isfinite(tensor.astype(np.float64)).all():
            problem = f"tensor {name!r} has numbers that are none (nan, inf)"
            raise RefusedOptionError(option, problem, "take another model")
    return encode_tensors(tensors)


def _path(option: str, named: str, folder: Path) -> Path:
    path = Path(named).expanduser()
    if path.is_file():
        return path
    kept = [file for file in folder.glob("*") if _DIGEST.fullmatch(file.name)]
    found = [file for file in kept if file.name.startswith(named)]
    if not _DIGEST.fullmatch(named) or not found:
        raise RefusedOptionError(option, "there is no such file, and no such model here", _EXPORT)
    if len(found) > 1:
        problem = f"{len(found)} models begin so"
        raise RefusedOptionError(option, problem, "give more digits of `fedagent models list`")
    return found[0]
