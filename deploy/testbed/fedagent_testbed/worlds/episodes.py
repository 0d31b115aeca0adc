"""When something out of the ordinary goes on in a run: drawn by the seed for all rounds at once."""

import numpy as np

from fedagent_coordinator.policies.base import BoolArray


def starts(rng: np.random.Generator, *, rounds: int, every: int) -> BoolArray:
    """Return bool[T]: gaps are uniform on half to one and a half times `every`; 0 for never."""
    begun = np.zeros(rounds, dtype=np.bool_)
    if not every:
        return begun
    gaps = every * rng.uniform(0.5, 1.5, 2 + 2 * rounds // every)
    at = np.unique(np.maximum(np.cumsum(gaps).astype(np.int64), 1))
    begun[at[at < rounds]] = True
    return begun


def episodes(rng: np.random.Generator, *, rounds: int, every: int, length: int) -> BoolArray:
    """Return bool[T], true for `length` rounds from each of the `starts`."""
    begun = starts(rng, rounds=rounds, every=every).astype(np.int64)
    going = np.convolve(begun, np.ones(min(length, rounds), dtype=np.int64))[:rounds]
    return np.asarray(going > 0, dtype=np.bool_)
