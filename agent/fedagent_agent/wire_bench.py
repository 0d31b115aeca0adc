"""Updates without training, for benches of the wire: no child process, no numpy.

A task whose learner is ``none`` asks for them. The update has the model's own
safetensors header, and one small number everywhere that depends on the round, so
that every round has another model.
"""

import struct

_PREFIX = 8
_STEP = 1e-4


def idle_update(model: bytes, round_: int) -> bytes | None:
    """Return an update for a model of float32 tensors; None if its header is not one."""
    start = _PREFIX + int.from_bytes(model[:_PREFIX], "little")
    rest = len(model) - start
    if len(model) < _PREFIX or rest < 0 or rest % 4:
        return None
    value = _STEP * (1 + round_ % 7)
    return model[:start] + struct.pack("<f", value) * (rest // 4)
