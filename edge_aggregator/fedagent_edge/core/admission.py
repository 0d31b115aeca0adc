"""What the content of a complete update must be."""

import math
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fedagent_protocol.errors import ProtocolError
from fedagent_protocol.tensors import (
    Buffer,
    Manifest,
    check_digest,
    expect_manifest,
    locate,
    tensor_at,
)
from fedagent_task.aggregation import CONTROL
from fedagent_task.aggregation.alignment import BLOCK, Floats, Signs, Sketch

SMALL_BYTES = 256 * 1024
"""Updates and models up to this size are handled at once: a hop to another thread costs more."""
LARGEST_NORM = 1e30
"""Beyond this, updates that are finite one by one may add up to a model that is not."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an update is valid; `reason` stands on the receipt when not."""

    reason: str = ""
    detail: str = ""
    norm: float = 0.0
    control_norm: float = 0.0
    sketch: Floats | None = field(default=None, compare=False)

    @property
    def valid(self) -> bool:
        """Whether nothing was wrong."""
        return not self.reason


def check_content(
    data: Buffer,
    digest: str,
    manifest: Manifest,
    norm_limit: float = 0.0,
    *,
    control_limit: float = 0.0,
    latest: Collection[str] = (),
    signs: Signs | None = None,
) -> Verdict:
    """Verify the bytes of a complete update: digest, manifest, finite, norm.

    Block by block, so that no second copy of the update is made. `manifest` is that of the
    base model, `norm_limit` the largest L2 norm over its tensors but for the counters in
    `latest`; control variates have `control_limit`. 0 stands for `LARGEST_NORM`. With `signs`
    the verdict has a sketch of what has the norm.
    """
    try:
        check_digest(data, digest)
        located = locate(data)
        expect_manifest(located, manifest)
    except ProtocolError as error:
        return Verdict(error.reason, str(error))
    square = control = 0.0
    sketch = None if signs is None else Sketch(signs)
    for item in located:
        name = item.spec.name
        beside = name.startswith(CONTROL) or name in latest
        part = _square(tensor_at(data, item).reshape(-1), None if beside else sketch)
        if not math.isfinite(part):
            return Verdict("non_finite", f"tensor {name[:64]!r}")
        if name.startswith(CONTROL):
            control += part
        elif not beside:
            square += part
    norm, control_norm = math.sqrt(square), math.sqrt(control)
    for what, found, limit in (
        ("norm", norm, norm_limit or LARGEST_NORM),
        ("control_norm", control_norm, control_limit or LARGEST_NORM),
    ):
        if found > limit:
            return Verdict(what, f"norm {found:.3g} is over {limit:.3g}", min(norm, 1e300))
    values = None if sketch is None else sketch.values
    return Verdict(norm=norm, control_norm=control_norm, sketch=values)


def _square(flat: npt.NDArray[np.generic], sketch: Sketch | None = None) -> float:
    """Return the sum of squares in float64; not finite exactly if a value is not.

    Squares of float32 values cannot overflow in float64. A sketch takes what is finite.
    """
    total = 0.0
    for start in range(0, flat.size, BLOCK):
        block = flat[start : start + BLOCK].astype(np.float64)
        if sketch is not None and math.isfinite(total):
            sketch.take(block)
        # Not a dot product: BLAS would keep every core busy for it.
        block *= block
        total += float(block.sum())
    return total
