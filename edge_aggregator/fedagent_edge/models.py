"""The edge's models: small ones in memory, and in the journal with the memory that names them."""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from fedagent_node.blobs import BlobStore
from fedagent_node.effects import ContentLostError, FinishModel
from fedagent_protocol.errors import DigestError, ProtocolError
from fedagent_protocol.messages import Chunk
from fedagent_protocol.tensors import digest_of, locate, tensor_at

from .core.admission import SMALL_BYTES
from .core.exchange import MAX_MODEL_BYTES

KEPT_PIECES = 5
"""Pieces of models that are kept in memory, of up to 512 KiB each."""
KEPT_MODELS = 3
"""The last that the edge held."""
LOST = (DigestError, OSError)
"""What reading a model raises that is of no more use; a failing disk answers with `OSError`."""


class Models:
    """Models by digest, served in chunks of `chunk_bytes`."""

    def __init__(self, directory: Path, chunk_bytes: int) -> None:
        self.files = BlobStore(directory, max_bytes=MAX_MODEL_BYTES)
        self.small: dict[str, bytes] = {}
        self._chunk_bytes = chunk_bytes
        self._held: list[str] = []
        # Several agents get the same piece within moments.
        self.completed = lru_cache(maxsize=KEPT_PIECES)(self._completed)

    def get(self, digest: str) -> bytes:
        """Return a model, or raise one of `LOST`."""
        small = self.small.get(digest)
        return self.files.get(digest) if small is None else small

    def put(self, data: bytes, *, small: bool) -> str:
        """Keep a model of our own; return its digest."""
        if not small:
            return self.files.put(data)
        digest = digest_of(data)
        self.small[digest] = data
        return digest

    def finish(self, finish: FinishModel, *, once: bool) -> str:
        """Keep a model that was received; return why not, if it is none. `OSError`: the disk.

        What devices get `once` may be of any numbers: of a base that never changes, a mask has
        infinities.
        """
        small, refused = finish.size <= SMALL_BYTES and not once, ""
        try:
            self.files.finish_part(finish.digest, durable=not small)
            data = self.files.get(finish.digest)
            if len(data) != finish.size:
                refused = "its size differs from what was announced"
            for item in locate(data):
                if not once and not np.isfinite(tensor_at(data, item)).all():
                    refused = f"tensor {item.spec.name[:64]!r} is not finite"
        except ProtocolError as error:
            return str(error)
        if small and not refused:
            self.small[finish.digest] = data
            self.files.drop(finish.digest)
        return refused

    def _completed(self, chunk: Chunk, nbytes: int) -> Chunk:
        return replace(chunk, data=self.piece(chunk.digest, chunk.index, nbytes))

    def piece(self, digest: str, index: int, nbytes: int) -> bytes:
        """Return so many bytes from a chunk on, or raise `ContentLostError`."""
        small, start = self.small.get(digest), index * self._chunk_bytes
        if small is not None:
            return small[start : start + nbytes]
        try:
            data = self.files.read(digest, start, nbytes)
        except LOST as error:
            raise self.lost(digest, str(error)) from error
        if len(data) != nbytes:
            raise self.lost(digest, "its file was cut off")
        return data

    def lost(self, digest: str, detail: str) -> ContentLostError:
        """Drop a model that is of no more use; return the error that says so."""
        self.completed.cache_clear()
        with suppress(OSError):
            self.files.drop(digest)
        return ContentLostError(digest, detail[:200])

    def hold(self, digest: str, others: set[str]) -> None:
        """Keep a model, and forget those of long ago, but for some others."""
        if digest in self._held[-1:]:
            return
        self._held = [*(d for d in self._held if d != digest), digest][-KEPT_MODELS:]
        keep = others.union(self._held)
        self.small = {digest: data for digest, data in self.small.items() if digest in keep}
        self.files.collect(keep)
