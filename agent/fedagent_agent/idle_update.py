"""The update of the learner `none`: a model's bytes with every number replaced.

It trains nothing and costs next to nothing, which is what a measurement of the wire
needs; it changes the model every round, so that the model has to travel. Needs no numpy.
"""

import struct

HEAD = 8


def idle_update(model: bytes, round_: int) -> bytes:
    """Return float32 tensors of the model's manifest, all of one small value.

    Args:
        model: Safetensors bytes, all float32.
        round_: Chooses the value, 0.001 to 0.007.
    """
    length = int.from_bytes(model[:HEAD], "little")
    data = len(model) - HEAD - length
    value = struct.pack("<f", 1e-3 * (1 + round_ % 7))
    return model[: HEAD + length] + value * (data // 4)
