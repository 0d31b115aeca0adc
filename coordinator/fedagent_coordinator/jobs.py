"""Work that takes long for a large model: done in a thread, or at once if small.

A job is made by the runtime, run anywhere (it touches nothing but model files), and
its result goes back into `CoordinatorRuntime.job_done`.
"""

import mmap
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field

from fedagent_node.blobs import BlobMissingError, BlobStore
from fedagent_protocol.errors import DigestError, ProtocolError
from fedagent_protocol.tensors import Manifest

from .evaluation import HeldOutSet
from .merging import EdgeModel, merge_models

SMALL_BYTES = 1 << 20
"""Below this a job takes less time than handing it to a thread and back is worth."""

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class PartChecked:
    """Whether a pulled model is what its digest says."""

    digest: str
    intact: bool


@dataclass(frozen=True, slots=True)
class MergeDone:
    """The merged model, durable on disk; `digest` is empty when none was usable."""

    round: int
    digest: str
    refused: dict[str, str]


@dataclass(frozen=True, slots=True)
class Evaluated:
    """How good a global model is, by metric; what was not measured is not there."""

    round: int
    digest: str
    metrics: Mapping[str, float] = field(default_factory=dict)


JobResult = PartChecked | MergeDone | Evaluated


@dataclass(frozen=True, slots=True)
class CheckPart:
    """Hash a pulled model and make it durable."""

    blobs: BlobStore
    digest: str
    size: int

    @property
    def small(self) -> bool:
        """Whether it may run in the event loop."""
        return self.size <= SMALL_BYTES

    def run(self) -> PartChecked:
        """Do it."""
        try:
            self.blobs.finish_part(self.digest)
        except (DigestError, BlobMissingError):
            return PartChecked(self.digest, intact=False)
        return PartChecked(self.digest, intact=True)


@dataclass(frozen=True, slots=True)
class MergeModels:
    """Average edge models into a durable global one."""

    blobs: BlobStore
    manifest: Manifest
    round: int
    models: tuple[tuple[str, float], ...]
    size: int

    @property
    def small(self) -> bool:
        """Whether it may run in the event loop."""
        return self.size * len(self.models) <= SMALL_BYTES

    def run(self) -> MergeDone:
        """Do it; the models are mapped, not read, so that memory stays at one tensor."""
        with ExitStack() as stack:
            models: list[EdgeModel] = []
            missing: dict[str, str] = {}
            for digest, weight in self.models:
                try:
                    file = stack.enter_context(self.blobs.path(digest).open("rb"))
                except FileNotFoundError:
                    missing[digest] = "missing"
                    continue
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                models.append(EdgeModel(digest, data, weight))
            merged = merge_models(models, self.manifest)
            if merged.data:
                self.blobs.put(merged.data)
            return MergeDone(self.round, merged.digest, {**missing, **merged.refused})


@dataclass(frozen=True, slots=True)
class EvaluateModel:
    """Evaluate a global model on the held-out set."""

    blobs: BlobStore
    held_out: HeldOutSet
    round: int
    digest: str
    size: int

    @property
    def small(self) -> bool:
        """Whether it may run in the event loop."""
        return self.size * len(self.held_out.y) <= 64 * SMALL_BYTES

    def run(self) -> Evaluated:
        """Do it."""
        try:
            found = self.held_out.evaluate(self.blobs.get(self.digest))
        except (ProtocolError, BlobMissingError):
            return Evaluated(self.round, self.digest)
        return Evaluated(self.round, self.digest, found.metrics())


Job = CheckPart | MergeModels | EvaluateModel
