"""What tests of streams share."""

import numpy as np
import numpy.typing as npt

from fedagent_agent.streams.base import Samples


def dense(samples: Samples) -> npt.NDArray[np.generic]:
    """Return features that are no sparse rows."""
    assert isinstance(samples.x, np.ndarray)
    return samples.x
