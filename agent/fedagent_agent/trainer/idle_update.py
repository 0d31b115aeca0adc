"""Updates without training, for benches of the wire: no child process, no numpy.

A task whose learner is ``none`` asks for them. The update has the model's own safetensors
header, and one small number everywhere that depends on the round, so that every round has
another model.
"""

import hashlib
import struct

from .frames import Failed, Trained

_PREFIX = 8
_STEP = 1e-4


def idle_update(model: bytes | None, round_: int) -> bytes | None:
    """Return an update for a model of float32 tensors; None if its header is not one."""
    if model is None or len(model) < _PREFIX:
        return None
    start = _PREFIX + int.from_bytes(model[:_PREFIX], "little")
    rest = len(model) - start
    if rest < 0 or rest % 4:
        return None
    value = _STEP * (1 + round_ % 7)
    return model[:start] + struct.pack("<f", value) * (rest // 4)


def idle_reply(
    job: int, body: bytes | None, *, iterations: int, seconds: float
) -> Trained | Failed:
    """Return the reply that belongs to an update without training."""
    if body is None:
        return Failed(job=job, reason="model", detail="not float32 safetensors")
    return Trained(
        job=job,
        digest=hashlib.sha256(body).hexdigest(),
        size=len(body),
        num_samples=1,
        iterations=max(1, iterations),
        seconds=seconds,
        seconds_per_iteration=0.0,
        arrivals=0,
        loss=0.0,
        norm=0.0,
    )
