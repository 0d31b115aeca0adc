"""What one edge answers when the coordinator observes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fedagent_protocol.columns import Columns


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """The answer of one edge; `client` is int32[P], run-wide, and `model` what it holds.

    `ids` are the agents of its sessions.
    """

    edge: int
    client: npt.NDArray[np.int32]
    columns: Columns
    received_at: float
    model: str = ""
    edge_id: str = ""
    ids: Sequence[str] = ()
