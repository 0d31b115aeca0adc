"""What an update must be: declared facts before a byte is stored, content afterwards."""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_protocol.errors import DigestError, ManifestError, OversizeError
from fedagent_protocol.messages import RoundOrder, UpdateOffer
from fedagent_protocol.tensors import (
    MAX_HEADER_BYTES,
    Buffer,
    Manifest,
    check_digest,
    expect_manifest,
    locate,
    tensor_at,
)
from fedagent_protocol.transfer import Layout


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an update is valid; `reason` is the word on the receipt when not."""

    reason: str = ""
    detail: str = ""
    norm: float = 0.0

    @property
    def valid(self) -> bool:
        """Whether nothing was wrong."""
        return not self.reason


def refuse_offer(offer: UpdateOffer, order: RoundOrder, base: str, model_bytes: int) -> str:
    """Return why an offer cannot be taken, or an empty string; costs no memory."""
    if offer.task != order.task:
        return "wrong_task"
    if offer.base != base:
        return "wrong_base"
    if not 0 < offer.num_samples <= order.max_samples:
        return "sample_count"
    if not 0 < offer.size <= model_bytes + MAX_HEADER_BYTES:
        return "oversize"
    try:
        layout = Layout(offer.size, offer.chunk_bytes)
    except (ValueError, OversizeError):
        return "bad_chunk"
    if offer.first and len(offer.first) != layout.span(0)[1]:
        return "bad_chunk"
    return ""


def check_content(data: Buffer, *, digest: str, manifest: Manifest, norm_limit: float) -> Verdict:
    """Verify the bytes of a complete update: digest, manifest, finite, norm.

    Tensor by tensor, so that no second copy of the update is made.
    """
    try:
        check_digest(data, digest)
        located = locate(data)
        expect_manifest(located, manifest)
    except (DigestError, ManifestError, OversizeError) as error:
        return Verdict(error.reason, str(error))
    square = 0.0
    for item in located:
        flat = tensor_at(data, item).reshape(-1)
        part = _square(flat)
        if not math.isfinite(part):
            return Verdict("non_finite", f"tensor {item.spec.name[:64]!r}")
        square += part
    norm = math.sqrt(square)
    if norm_limit and norm > norm_limit:
        return Verdict("norm", f"norm {norm:.3g} is over {norm_limit:.3g}", norm)
    return Verdict(norm=norm)


def _square(flat: npt.NDArray[np.generic]) -> float:
    """Return the sum of squares in float64, block by block; NaN if anything is not finite."""
    total = 0.0
    for start in range(0, flat.size, 1 << 18):
        block = flat[start : start + (1 << 18)].astype(np.float64)
        if not np.isfinite(block).all():
            return math.nan
        total += float(block @ block)
    return total
