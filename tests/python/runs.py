"""A small task, samples for it, and what they are made of."""

from typing import Any

import numpy as np
import numpy.typing as npt

RECIPE = """
name = "signs"
seed = 3
model = { kind = "logistic", features = 3 }
data = { labels = ["minus", "plus"] }
learner = { rate = 0.5, batch = 20, passes = 5 }
rounds = { count = 4, deadline_s = 5.0, every_s = 60.0 }
budget = { per_edge = 1.0 }
"""
SIDE = np.array([1.0, -2.0, 0.5])


def samples(count: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    x = np.random.default_rng(5).normal(size=(count, 3)).astype(np.float32)
    return x, np.where(x @ SIDE > 0, "plus", "minus")
