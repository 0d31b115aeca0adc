"""The edge's models on disk: the newest few, and what an update of them looks like."""

from pathlib import Path

import numpy as np

from fedagent_node.blobs import BlobMissingError, BlobStore
from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import Manifest, decode_tensors, encode_tensors, locate, tensor_at
from fedagent_protocol.transfer import Layout
from fedagent_task.mean import RunningMean

KEPT_MODELS = 3


class EdgeModels:
    """Content-addressed models; the last `KEPT_MODELS` that the edge held are kept."""

    def __init__(self, directory: Path, *, max_bytes: int) -> None:
        self._blobs = BlobStore(directory, max_bytes=max_bytes)
        self._held: list[str] = []
        self._manifest: tuple[str, Manifest] | None = None

    def has(self, digest: str) -> bool:
        """Return whether the model is here."""
        return bool(digest) and self._blobs.has(digest)

    def size(self, digest: str) -> int:
        """Return a model's size in bytes."""
        return self._blobs.size(digest)

    def hold(self, digest: str) -> None:
        """Note the edge's newest model, and forget the oldest."""
        self._held = [*(d for d in self._held if d != digest), digest][-KEPT_MODELS:]
        self._blobs.collect(self._held)

    def chunk(self, digest: str, index: int, chunk_bytes: int) -> bytes:
        """Return a chunk of a model."""
        start, stop = Layout(self._blobs.size(digest), chunk_bytes).span(index)
        return self._blobs.read(digest, start, stop - start)

    def manifest(self, digest: str) -> Manifest:
        """Return what an update of this model must hold."""
        if self._manifest is None or self._manifest[0] != digest:
            data = self._blobs.get(digest)
            manifest = Manifest(tuple(item.spec for item in locate(data)))
            self._manifest = (digest, manifest)
        return self._manifest[1]

    def put_mean(self, base: str, mean: RunningMean) -> tuple[str, bytes]:
        """Make base + mean a durable model; return its digest and bytes.

        An empty digest says that the result is not finite.

        Raises:
            OSError: The disk refused.
        """
        data = self._blobs.get(base)
        manifest = Manifest(tuple(item.spec for item in locate(data)))
        tensors = mean.apply(decode_tensors(data, manifest))
        if not all(np.isfinite(array).all() for array in tensors.values()):
            return "", b""
        fresh = encode_tensors(tensors)
        digest = self._blobs.put(fresh)
        self._manifest = (digest, manifest)
        return digest, fresh

    # ---------------------------------------------------- models that come in

    def begin_part(self, digest: str) -> None:
        """Forget pieces of an earlier attempt."""
        self._blobs.drop_part(digest)

    def write_part(self, digest: str, offset: int, data: bytes) -> None:
        """Write a piece.

        Raises:
            OSError: The disk refused.
        """
        self._blobs.write_part(digest, offset, data)

    def finish_part(self, digest: str, size: int) -> str:
        """Keep a model that is complete; return why it is not usable, or an empty string.

        Raises:
            OSError: The disk refused.
        """
        try:
            self._blobs.finish_part(digest)
            data = self._blobs.get(digest)
            for item in locate(data):
                if not np.isfinite(tensor_at(data, item)).all():
                    return f"tensor {item.spec.name[:64]!r} is not finite"
        except (ProtocolError, BlobMissingError) as error:
            return str(error)
        return "" if len(data) == size else "its size is not what was said"
